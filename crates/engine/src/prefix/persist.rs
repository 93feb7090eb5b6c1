//! Kept prefixes in a file, from one run to the next.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::tree::NodeId;
use super::{PrefixCache, Snapshot};
use crate::EngineError;
use crate::cache::KvLayer;
use crate::pages::Pages;
use crate::state_file::{self, Fingerprint, Sink, Source, failed, problem};

const MAGIC: &[u8; 8] = b"BASERTPC";
/// Stands for the parent of a first page.
const NO_PARENT: u32 = u32::MAX;

/// What a file of prefixes held, or holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixFile {
    /// Pages written, or read and kept.
    pub pages: usize,
    /// Snapshots written, or read and kept.
    pub snapshots: usize,
    /// Pages in the file for which there was no room.
    pub left_out: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Header {
    fingerprint: Fingerprint,
    page_tokens: usize,
    page_bytes: u64,
    /// Bytes of a page in the prediction head, if it was loaded.
    draft_bytes: u64,
    state_elements: usize,
    /// Pages in the body. Those used last come first, so parents come before their children.
    pages: usize,
    snapshots: usize,
    namespaces: Vec<String>,
}

impl Header {
    /// Bytes of a body like this; `None` for numbers that cannot be.
    fn body(&self) -> Option<u64> {
        let fixed = 12u64.checked_add(4 * self.page_tokens as u64)?.checked_add(self.page_bytes)?;
        let fixed = fixed.checked_add(self.draft_bytes)?;
        let states = (self.snapshots as u64).checked_mul(4)?.checked_mul(self.state_elements as u64)?;
        fixed.checked_mul(self.pages as u64)?.checked_add(states)
    }
}

/// The start of a page in the file.
struct Entry {
    parent: u32,
    namespace: u32,
    tokens: Vec<u32>,
    has_state: bool,
}

impl Entry {
    fn read(source: &mut Source, page_tokens: usize) -> io::Result<Entry> {
        let ids = source.ids(3)?;
        let tokens = source.ids(page_tokens)?;
        Ok(Entry { parent: ids[0], namespace: ids[1], tokens, has_state: ids[2] == 1 })
    }
}

/// Bytes of a page in all of these layers.
fn page_bytes(layers: &[KvLayer]) -> u64 {
    layers.iter().map(KvLayer::page_bytes).sum()
}

/// Reads a page of these layers.
fn read_page(source: &mut Source, layers: &mut [KvLayer], page: u32) -> io::Result<()> {
    layers.iter_mut().try_for_each(|layer| {
        let (k, v) = layer.page_mut(page);
        source.bytes(k)?;
        source.bytes(v)
    })
}

/// Reads the prediction head's page where both the file and this cache have one. What nobody asks for is passed over; what is
/// not there is empty, and guesses behind it are worse.
fn read_draft(source: &mut Source, bytes: u64, head: &mut [KvLayer], page: u32) -> io::Result<()> {
    if head.is_empty() {
        return source.skip(bytes);
    }
    if bytes > 0 {
        return read_page(source, head, page);
    }
    for layer in head {
        let (k, v) = layer.page_mut(page);
        k.fill(0);
        v.fill(0);
    }
    Ok(())
}

impl PrefixCache {
    /// Writes everything that is kept. `layers` are those of the trunk, and those of the prediction head.
    ///
    /// # Errors
    /// From the system.
    pub fn save(
        &self,
        path: &Path,
        fingerprint: Fingerprint,
        layers: (&[KvLayer], &[KvLayer]),
    ) -> Result<PrefixFile, EngineError> {
        let mut order: Vec<NodeId> = self.tree.nodes().map(|(id, _)| id).collect();
        // The newest first, and among those of one moment the parents first.
        order.sort_by_key(|&id| (u64::MAX - self.tree.node(id).used, self.tree.node(id).depth));
        let mut namespaces: Vec<&str> = self.tree.nodes().map(|(_, node)| &*node.namespace).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let header = Header {
            fingerprint,
            page_tokens: self.page_tokens,
            page_bytes: page_bytes(layers.0),
            draft_bytes: page_bytes(layers.1),
            state_elements: self.snapshots.state_len(),
            pages: order.len(),
            snapshots: self.snapshots.used(),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut places = vec![NO_PARENT; self.tree.capacity()];
        order.iter().zip(0..).for_each(|(&id, place)| places[id] = place);
        let bytes = state_file::write(path, MAGIC, &header, |sink| {
            order.iter().try_for_each(|&id| self.write_node(sink, id, &places, &namespaces, layers))
        })?;
        Ok(PrefixFile { pages: order.len(), snapshots: header.snapshots, left_out: 0, bytes })
    }

    fn write_node(
        &self,
        sink: &mut Sink,
        id: NodeId,
        places: &[u32],
        namespaces: &[&str],
        layers: (&[KvLayer], &[KvLayer]),
    ) -> io::Result<()> {
        let node = self.tree.node(id);
        let namespace = namespaces.binary_search(&&*node.namespace).unwrap_or(0) as u32;
        let parent = node.parent.map_or(NO_PARENT, |parent| places[parent]);
        sink.ids(&[parent, namespace, u32::from(node.snapshot.is_some())])?;
        sink.ids(&node.tokens)?;
        for layer in layers.0.iter().chain(layers.1) {
            let (k, v) = layer.page(node.page);
            sink.bytes(k)?;
            sink.bytes(v)?;
        }
        node.snapshot.map_or(Ok(()), |snapshot| sink.floats(self.snapshots.get(snapshot.slot)))
    }

    /// Takes in a file, in the place of what is kept. What was used last comes first where there is no room for all. A file that
    /// was made without the prediction head serves a cache that has one, and the other way round.
    ///
    /// # Errors
    /// A file that is damaged or was made by something else; then nothing is kept.
    pub fn load(
        &mut self,
        path: &Path,
        fingerprint: &Fingerprint,
        pool: &mut Pages,
        layers: (&mut [KvLayer], &mut [KvLayer]),
    ) -> Result<PrefixFile, EngineError> {
        let (header, mut source): (Header, Source) = Source::open(path, MAGIC)?;
        self.refuse_foreign(path, &header, fingerprint, (layers.0, layers.1))?;
        if header.body() != Some(source.body) {
            return Err(problem(path, "its length is wrong"));
        }
        self.clear(pool);
        let taken = self.take_nodes(&header, &mut source, pool, layers);
        let result = taken.map_err(failed(path)).and_then(|taken| taken.map_err(|why| problem(path, why)));
        if result.is_err() {
            self.clear(pool);
        }
        let left_out = result? - self.tree.len();
        let bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
        Ok(PrefixFile { pages: self.tree.len(), snapshots: self.snapshots.used(), left_out, bytes })
    }

    fn refuse_foreign(
        &self,
        path: &Path,
        header: &Header,
        fingerprint: &Fingerprint,
        layers: (&[KvLayer], &[KvLayer]),
    ) -> Result<(), EngineError> {
        if let Some(reason) = fingerprint.differs(&header.fingerprint) {
            return Err(problem(path, &reason));
        }
        if header.page_tokens != self.page_tokens {
            let (theirs, ours) = (header.page_tokens, self.page_tokens);
            return Err(problem(path, &format!("its pages have {theirs} tokens, this cache's have {ours}")));
        }
        let (page, draft) = (page_bytes(layers.0), page_bytes(layers.1));
        let draft_differs = header.draft_bytes > 0 && draft > 0 && header.draft_bytes != draft;
        let own = (page, self.snapshots.state_len());
        if (header.page_bytes, header.state_elements) != own || draft_differs {
            return Err(problem(path, "its pages and states have other sizes"));
        }
        Ok(())
    }

    /// Takes in all nodes for which there is room; gives the number in the file.
    fn take_nodes(
        &mut self,
        header: &Header,
        source: &mut Source,
        pool: &mut Pages,
        (trunk, head): (&mut [KvLayer], &mut [KvLayer]),
    ) -> io::Result<Result<usize, &'static str>> {
        let mut ids: Vec<NodeId> = Vec::new();
        // The first is the youngest.
        self.clock += header.pages as u64 + 1;
        let (now, mut states) = (self.clock, 0);
        for place in 0..header.pages.min(self.most_pages) {
            let entry = Entry::read(source, self.page_tokens)?;
            let parent = match entry.parent {
                NO_PARENT => None,
                parent => match ids.get(parent as usize) {
                    Some(&id) => Some(id),
                    None => return Ok(Err("a page comes before its parent")),
                },
            };
            let Some(namespace) = header.namespaces.get(entry.namespace as usize) else {
                return Ok(Err("a page is in no namespace"));
            };
            if self.tree.child(namespace, parent, &entry.tokens).is_some() {
                return Ok(Err("a page is there twice"));
            }
            states += usize::from(entry.has_state);
            if states > header.snapshots {
                return Ok(Err("there are more states than it says"));
            }
            let Some(page) = pool.take() else { return Ok(Err("there is no free page")) };
            let used = now - place as u64;
            let id = self.tree.add(namespace, parent, &entry.tokens, page, used);
            ids.push(id);
            read_page(source, trunk, page)?;
            read_draft(source, header.draft_bytes, head, page)?;
            if entry.has_state {
                self.take_state(source, id, used)?;
            }
        }
        // What leads nowhere was cut off by the end of the room.
        ids.iter().rev().for_each(|&id| self.drop_if_useless(pool, id));
        Ok(Ok(header.pages))
    }

    /// Reads a state, and keeps it if there is a slot for it.
    fn take_state(&mut self, source: &mut Source, id: NodeId, used: u64) -> io::Result<()> {
        let Some(slot) = self.snapshots.take() else {
            return source.floats(&mut vec![0.0; self.snapshots.state_len()]);
        };
        self.snapshot_ages.insert((used, id));
        self.tree.node_mut(id).snapshot = Some(Snapshot { slot, used, passing: false });
        source.floats(self.snapshots.get_mut(slot))
    }

    fn drop_if_useless(&mut self, pool: &mut Pages, id: NodeId) {
        let node = self.tree.node(id);
        if self.stateful && node.snapshot.is_none() && node.children.is_empty() {
            self.remove(pool, id);
        }
    }
}
