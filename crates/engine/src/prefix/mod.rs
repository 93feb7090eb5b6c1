//! Prefixes that outlive their sequences: a tree whose edges are whole pages of tokens.
//!
//! Every node is a page of tokens behind its parent's, compared token by token, and holds the pool page with their keys and
//! values. A model with recurrent layers can only go on from a position whose state is known, so its nodes may also hold a
//! snapshot, and pages that lead to no snapshot are not kept. Namespaces have trees of their own.
//!
//! Room is made by age: the leaf (or snapshot) that was used longest ago goes first. Pages that a live sequence shares
//! are never given up. A hit is exact, because a page's contents and a state depend on their tokens alone.

mod persist;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;

use crate::pages::Pages;
use crate::snapshots::Snapshots;
pub use persist::PrefixFile;
use tree::{Node, NodeId, Tree};

/// What the prefix cache has done, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Tokens of a page, the unit of reuse.
    pub page_tokens: usize,
    /// Prompts that were looked up.
    pub lookups: u64,
    /// Those of which something was reused.
    pub hits: u64,
    /// Tokens of all those prompts.
    pub asked_tokens: u64,
    /// Tokens that were reused.
    pub hit_tokens: u64,
    /// Pages given up for others.
    pub evicted_pages: u64,
    /// Snapshots given up for others.
    pub evicted_snapshots: u64,
    /// Pages held.
    pub pages: usize,
    /// Most pages that are ever held.
    pub most_pages: usize,
    /// Snapshots held.
    pub snapshots: usize,
    /// Most snapshots that are ever held.
    pub most_snapshots: usize,
    /// Bytes of the pages and snapshots held.
    pub bytes: u64,
    /// Most bytes that are ever held.
    pub limit_bytes: u64,
}

/// What is known of a prompt.
#[derive(Debug, Default)]
pub(crate) struct Hit {
    /// Tokens that need not be run.
    pub tokens: usize,
    /// Their pages.
    pub pages: Vec<u32>,
    /// The state after them, for a model that has one.
    pub snapshot: Option<usize>,
    /// Tokens whose pages are here, though perhaps not the state after them.
    pub shared: usize,
}

/// A prefix to be kept.
#[derive(Default)]
pub(crate) struct Prefix<'a> {
    pub namespace: &'a str,
    /// Whole pages of tokens.
    pub tokens: &'a [u32],
    /// Their pages in the pools.
    pub pages: &'a [u32],
    /// The state after them; empty for a model that has none.
    pub state: &'a [f32],
    /// Will be replaced by a longer one of the same sequence.
    pub passing: bool,
    /// Length of the passing prefix that this one replaces.
    pub replaces: Option<usize>,
}

/// The cache.
pub(crate) struct PrefixCache {
    tree: Tree,
    page_tokens: usize,
    most_pages: usize,
    stateful: bool,
    snapshots: Snapshots,
    /// Nodes with a snapshot, by when it was last used.
    snapshot_ages: BTreeSet<(u64, NodeId)>,
    clock: u64,
    stats: PrefixStats,
}

impl PrefixCache {
    /// An empty cache for so many pages, and snapshots if the model has states of `state_len` elements.
    pub fn new(page_tokens: usize, most_pages: usize, snapshots: usize, state_len: usize) -> PrefixCache {
        PrefixCache {
            tree: Tree::default(),
            page_tokens,
            most_pages,
            stateful: state_len > 0,
            snapshots: Snapshots::new(snapshots, state_len),
            snapshot_ages: BTreeSet::new(),
            clock: 0,
            stats: PrefixStats::default(),
        }
    }

    /// The longest known prefix of a prompt that leaves at least one token to run.
    pub fn find(&mut self, namespace: &str, prompt: &[u32]) -> Hit {
        self.clock += 1;
        let known = &prompt[..prompt.len().saturating_sub(1)];
        let path = self.tree.path(namespace, known.chunks_exact(self.page_tokens));
        path.iter().for_each(|&node| self.tree.touch(node, self.clock));
        let reused = match self.stateful {
            false => path.len(),
            true => {
                path.iter().rposition(|&node| self.tree.node(node).snapshot.is_some()).map_or(0, |i| i + 1)
            }
        };
        let end = path[..reused].last().copied();
        let hit = Hit {
            tokens: reused * self.page_tokens,
            pages: path[..reused].iter().map(|&node| self.tree.node(node).page).collect(),
            snapshot: end.and_then(|node| self.use_snapshot(node)),
            shared: path.len() * self.page_tokens,
        };
        self.stats.lookups += 1;
        self.stats.hits += u64::from(hit.tokens > 0);
        self.stats.asked_tokens += prompt.len() as u64;
        self.stats.hit_tokens += hit.tokens as u64;
        hit
    }

    /// A snapshot's values.
    pub fn state(&self, snapshot: usize) -> &[f32] {
        self.snapshots.get(snapshot)
    }

    /// The slot of a node's snapshot, which is young again, and stays where it is from now on.
    fn use_snapshot(&mut self, id: NodeId) -> Option<usize> {
        let clock = self.clock;
        let snapshot = self.tree.node_mut(id).snapshot.as_mut()?;
        self.snapshot_ages.remove(&(snapshot.used, id));
        (snapshot.used, snapshot.passing) = (clock, false);
        self.snapshot_ages.insert((clock, id));
        Some(snapshot.slot)
    }

    /// Keeps a prefix; false if there is no room that could be made.
    pub fn keep(&mut self, pool: &mut Pages, prefix: &Prefix<'_>) -> bool {
        self.clock += 1;
        let chunks = || prefix.tokens.chunks_exact(self.page_tokens);
        let path = self.tree.path(prefix.namespace, chunks());
        let missing: Vec<&[u32]> = chunks().skip(path.len()).collect();
        path.iter().for_each(|&node| self.tree.touch(node, self.clock));
        let known = path.len();
        let mut end = path.last().copied();
        for (tokens, &page) in missing.iter().zip(&prefix.pages[known..]) {
            if self.tree.len() >= self.most_pages && !self.evict_page(pool) {
                self.drop_useless(pool, end, true);
                return false;
            }
            pool.hold(page);
            end = Some(self.tree.add(prefix.namespace, end, tokens, page, self.clock));
        }
        let Some(end) = end else { return false };
        !self.stateful || self.snap(pool, end, prefix, &path)
    }

    /// Puts the state at the end of a prefix.
    fn snap(&mut self, pool: &mut Pages, end: NodeId, prefix: &Prefix<'_>, path: &[NodeId]) -> bool {
        if let Some(snapshot) = self.tree.node(end).snapshot {
            // It has what it needs; only a place in the queue.
            self.snapshot_ages.remove(&(snapshot.used, end));
            self.snapshot_ages.insert((self.clock, end));
            let kept = Snapshot { used: self.clock, passing: snapshot.passing && prefix.passing, ..snapshot };
            self.tree.node_mut(end).snapshot = Some(kept);
            return true;
        }
        let replaced = prefix.replaces.and_then(|tokens| (tokens / self.page_tokens).checked_sub(1));
        let replaced = replaced.and_then(|index| path.get(index)).copied();
        let passing = |id: &NodeId| self.tree.node(*id).snapshot.is_some_and(|snapshot| snapshot.passing);
        let slot = match replaced.filter(passing) {
            Some(node) => self.take_snapshot(node),
            None => self.snapshots.take().or_else(|| self.evict_snapshot(pool)),
        };
        let Some(slot) = slot else {
            self.drop_useless(pool, Some(end), true);
            return false;
        };
        self.snapshots.get_mut(slot).copy_from_slice(prefix.state);
        self.snapshot_ages.insert((self.clock, end));
        self.tree.node_mut(end).snapshot = Some(Snapshot { slot, used: self.clock, passing: prefix.passing });
        true
    }

    /// Gives up the page that was used longest ago, unless all are in use. Those that a sequence holds count as used just now, so
    /// that they are not passed again at the next eviction.
    fn evict_page(&mut self, pool: &mut Pages) -> bool {
        while let Some(oldest) = self.tree.oldest() {
            let node = self.tree.node(oldest);
            if node.used == self.clock {
                return false;
            }
            if pool.holders(node.page) > 1 {
                self.touch_with_parents(oldest);
                continue;
            }
            self.stats.evicted_pages += 1;
            let parent = self.remove(pool, oldest);
            self.drop_useless(pool, parent, false);
            return true;
        }
        false
    }

    /// Marks a node as used, and its parents, none of which is ever older.
    fn touch_with_parents(&mut self, id: NodeId) {
        let mut next = Some(id);
        while let Some(id) = next.filter(|&id| self.tree.node(id).used < self.clock) {
            self.tree.touch(id, self.clock);
            next = self.tree.node(id).parent;
        }
    }

    /// Gives up the snapshot that was used longest ago, and hands over its slot.
    fn evict_snapshot(&mut self, pool: &mut Pages) -> Option<usize> {
        let (_, oldest) = self.snapshot_ages.first().copied()?;
        self.stats.evicted_snapshots += 1;
        let slot = self.take_snapshot(oldest);
        self.drop_useless(pool, Some(oldest), false);
        slot
    }

    fn take_snapshot(&mut self, id: NodeId) -> Option<usize> {
        let snapshot = self.tree.node_mut(id).snapshot.take()?;
        self.snapshot_ages.remove(&(snapshot.used, id));
        Some(snapshot.slot)
    }

    /// Removes a leaf; its parent, if that is a page, too.
    fn remove(&mut self, pool: &mut Pages, id: NodeId) -> Option<NodeId> {
        if let Some(slot) = self.take_snapshot(id) {
            self.snapshots.release(slot);
        }
        let node = self.tree.remove(id);
        pool.release(node.page);
        node.parent
    }

    /// Removes pages from the end of a branch that lead to no snapshot. Those of the moment only if `fresh`.
    fn drop_useless(&mut self, pool: &mut Pages, mut end: Option<NodeId>, fresh: bool) {
        while let Some(id) = end.filter(|_| self.stateful) {
            let node = self.tree.node(id);
            let of_use = node.snapshot.is_some() || !node.children.is_empty();
            if of_use || (node.used == self.clock && !fresh) {
                return;
            }
            self.stats.evicted_pages += u64::from(!fresh);
            end = self.remove(pool, id);
        }
    }

    /// Counters; `page_bytes` and `state_bytes` are the sizes of a page in all layers and of a snapshot.
    pub fn stats(&self, page_bytes: u64, state_bytes: u64) -> PrefixStats {
        let (pages, snapshots) = (self.tree.len(), self.snapshots.used());
        PrefixStats {
            page_tokens: self.page_tokens,
            pages,
            most_pages: self.most_pages,
            snapshots,
            most_snapshots: self.snapshots.slots(),
            bytes: pages as u64 * page_bytes + snapshots as u64 * state_bytes,
            limit_bytes: self.most_pages as u64 * page_bytes + self.snapshots.bytes(),
            ..self.stats
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self, pool: &mut Pages) {
        // In the order of age, so that leaves come before their parents.
        let all: Vec<NodeId> = self.tree.by_age().collect();
        for id in all {
            self.remove(pool, id);
        }
    }

    /// Whether states are kept along with pages.
    pub fn is_stateful(&self) -> bool {
        self.stateful
    }

    /// Bytes of all snapshot slots.
    pub fn snapshot_bytes(&self) -> u64 {
        self.snapshots.bytes()
    }

    /// Pages that are held, one entry for each node.
    pub fn held(&self) -> impl Iterator<Item = u32> {
        self.tree.nodes().map(|(_, node)| node.page)
    }

    /// Checks that tree, ages and snapshots say the same.
    pub fn check(&self) -> Result<(), String> {
        self.tree.check(self.page_tokens)?;
        if self.tree.len() > self.most_pages {
            return Err(format!("{} pages are kept, at most {}", self.tree.len(), self.most_pages));
        }
        let snapshots = || self.tree.nodes().filter_map(|(id, node)| Some((id, node.snapshot?)));
        self.snapshots.check(snapshots().map(|(_, snapshot)| snapshot.slot))?;
        let ages: BTreeSet<_> = snapshots().map(|(id, snapshot)| (snapshot.used, id)).collect();
        if ages != self.snapshot_ages {
            return Err("snapshots and their ages differ".to_owned());
        }
        let useless = |node: &Node| self.stateful && node.children.is_empty() && node.snapshot.is_none();
        match self.tree.nodes().find(|(_, node)| useless(node)) {
            Some((id, _)) => Err(format!("node {id} leads to no snapshot")),
            None => Ok(()),
        }
    }
}

/// A state kept at a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub slot: usize,
    /// When it was last restored or made.
    pub used: u64,
    /// Replaced by the next one of its sequence.
    pub passing: bool,
}
