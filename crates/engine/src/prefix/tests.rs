//! The cache alone, with pages of two letters.

use super::*;

/// A cache whose pages have two tokens, with pages to put into it.
struct World {
    cache: PrefixCache,
    pool: Pages,
    /// Pages of a sequence that lives.
    in_use: Vec<u32>,
}

impl World {
    fn new(pages: usize, snapshots: usize) -> World {
        let cache = PrefixCache::new(2, pages, snapshots, usize::from(snapshots > 0));
        World { cache, pool: Pages::new(40), in_use: Vec::new() }
    }

    /// A sequence of its own runs `text`, two letters a page, and is kept and ended.
    fn keep(&mut self, text: &str) -> bool {
        self.keep_with(text, false, None)
    }

    fn keep_with(&mut self, text: &str, passing: bool, replaces: Option<usize>) -> bool {
        let tokens: Vec<u32> = text.chars().map(u32::from).collect();
        let pages: Vec<u32> = tokens.chunks(2).map(|_| self.pool.take().unwrap()).collect();
        let state = [tokens.len() as f32];
        let state = if self.cache.stateful { &state[..] } else { &[] };
        let prefix = Prefix { namespace: "", tokens: &tokens, pages: &pages, state, passing, replaces };
        let kept = self.cache.keep(&mut self.pool, &prefix);
        pages.into_iter().for_each(|page| self.pool.release(page));
        self.check();
        kept
    }

    fn check(&self) {
        self.cache.check().unwrap();
        self.pool.check(self.cache.held().chain(self.in_use.iter().copied())).unwrap();
    }

    /// A sequence begins that holds the pages kept of a text.
    fn hold(&mut self, text: &str) {
        let ids: Vec<u32> = text.chars().map(u32::from).collect();
        self.in_use = self.cache.find("", &ids).pages;
        self.in_use.iter().for_each(|&page| self.pool.hold(page));
    }

    /// That sequence ends.
    fn release(&mut self) {
        for page in std::mem::take(&mut self.in_use) {
            self.pool.release(page);
        }
    }

    /// Tokens that a prompt finds.
    fn find(&mut self, text: &str) -> usize {
        let tokens: Vec<u32> = text.chars().map(u32::from).collect();
        let hit = self.cache.find("", &tokens);
        if let Some(snapshot) = hit.snapshot {
            assert_eq!(self.cache.state(snapshot), [hit.tokens as f32]);
        }
        self.check();
        hit.tokens
    }
}

#[test]
fn the_leaf_that_was_used_longest_ago_makes_room() {
    let mut world = World::new(4, 0);
    assert!(world.keep("aabb") && world.keep("aacc") && world.keep("dd"));
    assert_eq!((world.find("aabb."), world.find("aacc."), world.find("dd.")), (4, 4, 2));
    assert_eq!(world.find("aabb"), 2, "the last token has to be run");
    assert!(world.keep("ee"));
    assert_eq!((world.find("aabb."), world.find("aacc."), world.find("dd.")), (2, 4, 2));
    assert_eq!(world.cache.stats.evicted_pages, 1);
}

#[test]
fn pages_in_use_stay() {
    let mut world = World::new(2, 0);
    assert!(world.keep("aabb"));
    world.hold("aabb.");
    let tokens = [1, 2];
    let page = [world.pool.take().unwrap()];
    let prefix = Prefix { tokens: &tokens, pages: &page, ..Prefix::default() };
    assert!(!world.cache.keep(&mut world.pool, &prefix));
    world.release();
    assert!(world.cache.keep(&mut world.pool, &prefix));
    world.pool.release(page[0]);
    assert_eq!(world.find("aabb."), 2);
}

#[test]
fn pages_in_use_are_passed_once_and_not_at_every_eviction() {
    let mut world = World::new(4, 0);
    assert!(world.keep("aabb"));
    world.hold("aabb.");
    let used = |world: &World| -> Vec<u64> {
        let nodes = world.cache.tree.nodes().map(|(_, node)| node);
        nodes.filter(|node| world.in_use.contains(&node.page)).map(|node| node.used).collect()
    };
    let first = used(&world);
    assert!(world.keep("cc") && world.keep("dd"));
    assert_eq!(used(&world), first);
    assert!(world.keep("ee"));
    let passed = used(&world);
    assert!(passed.len() == 2 && passed > first);
    assert!(world.keep("ff"));
    assert_eq!(used(&world), passed);
    world.release();
    assert_eq!(world.cache.stats.evicted_pages, 2);
    assert_eq!((world.find("aabb."), world.find("cc."), world.find("dd."), world.find("ff.")), (4, 0, 0, 2));
}

#[test]
fn a_state_is_needed_to_go_on_and_pages_that_lead_to_none_are_not_kept() {
    let mut world = World::new(8, 2);
    assert!(world.keep("aabbcc"));
    assert_eq!(world.find("aabbcc."), 6);
    assert_eq!(world.find("aabb."), 0, "there are pages and no state");
    assert!(world.keep("aabb"));
    assert_eq!(world.find("aabb."), 4);
    // The longer one is the older now, and its last page goes with its state.
    assert!(world.keep("dd"));
    assert_eq!((world.find("aabbcc."), world.find("dd.")), (4, 2));
    assert_eq!(world.cache.tree.len(), 3);
    assert_eq!(world.cache.stats.evicted_snapshots, 1);
}

#[test]
fn a_prefix_for_which_there_is_no_room_leaves_nothing_behind() {
    let mut world = World::new(2, 2);
    assert!(!world.keep("aabbcc"));
    assert_eq!((world.cache.tree.len(), world.cache.snapshots.used()), (0, 0));
    let mut dense = World::new(2, 0);
    assert!(!dense.keep("aabbcc"));
    assert_eq!(dense.find("aabbcc."), 4, "without states a part is of use");
}

#[test]
fn a_passing_state_gives_way_to_the_next_one_unless_someone_used_it() {
    let mut world = World::new(8, 3);
    assert!(world.keep("aa") && world.keep_with("aabb", true, None));
    assert!(world.keep_with("aabbcc", true, Some(4)));
    assert_eq!((world.find("aabb."), world.cache.snapshots.used()), (2, 2));
    assert_eq!(world.find("aabbcc."), 6);
    assert!(world.keep_with("aabbccdd", true, Some(6)));
    assert_eq!((world.find("aabbcc."), world.find("aabbccdd.")), (6, 8));
}

#[test]
fn clearing_frees_every_page() {
    let mut world = World::new(8, 3);
    assert!(world.keep("aabbcc") && world.keep("aadd") && world.keep("ee"));
    world.cache.clear(&mut world.pool);
    world.check();
    assert_eq!((world.cache.tree.len(), world.cache.snapshots.used()), (0, 0));
}
