//! Nodes of the prefix cache and the ways between them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::Snapshot;

/// Index of a node.
pub(crate) type NodeId = usize;

/// Children by their tokens. Looked up by equality of all tokens.
type Children = HashMap<Arc<[u32]>, NodeId>;

/// A page of tokens behind those of its parents.
pub(crate) struct Node {
    /// `None` for a first page.
    pub parent: Option<NodeId>,
    pub tokens: Arc<[u32]>,
    pub namespace: Arc<str>,
    /// Pages from the start, this one included.
    pub depth: usize,
    /// Page in the pools.
    pub page: u32,
    pub children: Children,
    /// When it was last on a way. No younger than its parent's.
    pub used: u64,
    pub snapshot: Option<Snapshot>,
}

/// All nodes of all namespaces.
#[derive(Default)]
pub(crate) struct Tree {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    /// First pages. A namespace without any is not in it.
    roots: HashMap<Arc<str>, Children>,
    /// Oldest first, and the deeper first where nodes were used together: the first one is a leaf.
    ages: BTreeSet<(u64, Reverse<usize>, NodeId)>,
}

impl Tree {
    /// Nodes, which are as many pages.
    pub fn len(&self) -> usize {
        self.ages.len()
    }

    /// A node. Ids come from this tree.
    pub fn node(&self, id: NodeId) -> &Node {
        match &self.nodes[id] {
            Some(node) => node,
            None => unreachable!("ids of removed nodes are kept nowhere"),
        }
    }

    /// The same, to write.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        match &mut self.nodes[id] {
            Some(node) => node,
            None => unreachable!("ids of removed nodes are kept nowhere"),
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)))
    }

    /// The node that was used longest ago, a leaf.
    pub fn oldest(&self) -> Option<NodeId> {
        self.ages.first().map(|&(.., id)| id)
    }

    /// Nodes that were used longest ago first.
    pub fn by_age(&self) -> impl Iterator<Item = NodeId> {
        self.ages.iter().map(|&(.., id)| id)
    }

    /// The nodes of the longest known prefix of `pages`.
    pub fn path<'a>(&self, namespace: &str, pages: impl Iterator<Item = &'a [u32]>) -> Vec<NodeId> {
        let Some(mut children) = self.roots.get(namespace) else { return Vec::new() };
        let mut path = Vec::new();
        for tokens in pages {
            let Some(&id) = children.get(tokens) else { break };
            path.push(id);
            children = &self.node(id).children;
        }
        path
    }

    /// Marks a node as used at `clock`.
    pub fn touch(&mut self, id: NodeId, clock: u64) {
        let node = self.node_mut(id);
        let (before, depth) = (std::mem::replace(&mut node.used, clock), Reverse(node.depth));
        self.ages.remove(&(before, depth, id));
        self.ages.insert((clock, depth, id));
    }

    /// A new page behind `parent`, used at `clock`.
    pub fn add(
        &mut self,
        namespace: &str,
        parent: Option<NodeId>,
        tokens: &[u32],
        page: u32,
        clock: u64,
    ) -> NodeId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        let tokens: Arc<[u32]> = tokens.into();
        let (namespace, depth): (Arc<str>, usize) = match parent {
            Some(parent) => {
                let parent = self.node_mut(parent);
                parent.children.insert(Arc::clone(&tokens), id);
                (Arc::clone(&parent.namespace), parent.depth + 1)
            }
            None => {
                let known = self.roots.get_key_value(namespace).map(|(name, _)| Arc::clone(name));
                let name: Arc<str> = known.unwrap_or_else(|| namespace.into());
                self.roots.entry(Arc::clone(&name)).or_default().insert(Arc::clone(&tokens), id);
                (name, 1)
            }
        };
        let children = Children::new();
        let node = Node { parent, tokens, namespace, depth, page, children, used: clock, snapshot: None };
        self.nodes[id] = Some(node);
        self.ages.insert((clock, Reverse(depth), id));
        id
    }

    /// Takes a leaf out.
    pub fn remove(&mut self, id: NodeId) -> Node {
        let Some(node) = self.nodes[id].take() else { unreachable!("ids of removed nodes are kept nowhere") };
        self.vacant.push(id);
        self.ages.remove(&(node.used, Reverse(node.depth), id));
        match node.parent {
            Some(parent) => {
                self.node_mut(parent).children.remove(&node.tokens);
            }
            None => {
                if let Some(first) = self.roots.get_mut(&node.namespace) {
                    first.remove(&node.tokens);
                    if first.is_empty() {
                        self.roots.remove(&node.namespace);
                    }
                }
            }
        }
        node
    }

    /// Ids are below this.
    pub fn capacity(&self) -> usize {
        self.nodes.len()
    }

    /// The page of `tokens` behind `parent`, if it is there.
    pub fn child(&self, namespace: &str, parent: Option<NodeId>, tokens: &[u32]) -> Option<NodeId> {
        let children = match parent {
            Some(parent) => Some(&self.node(parent).children),
            None => self.roots.get(namespace),
        };
        children?.get(tokens).copied()
    }

    /// Checks that parents and children know each other and that nobody is older than its parent.
    pub fn check(&self, page_tokens: usize) -> Result<(), String> {
        for (id, node) in self.nodes() {
            let wrong = |what: &str| Err(format!("node {id} {what}"));
            let (siblings, above, age) = match node.parent {
                Some(parent) => match self.nodes.get(parent) {
                    Some(Some(parent)) => (Some(&parent.children), parent.depth, parent.used),
                    _ => return wrong("has a parent that is gone"),
                },
                None => (self.roots.get(&node.namespace), 0, u64::MAX),
            };
            if siblings.and_then(|siblings| siblings.get(&node.tokens)) != Some(&id) {
                return wrong("is not its parent's child");
            }
            if node.tokens.len() != page_tokens || node.depth != above + 1 || node.used > age {
                return wrong("has a wrong length, depth or age");
            }
            if !self.ages.contains(&(node.used, Reverse(node.depth), id)) {
                return wrong("has no place among the ages");
            }
        }
        let children = self.nodes().map(|(_, node)| node.children.len()).sum::<usize>();
        let first = self.roots.values().map(Children::len).sum::<usize>();
        let count = self.nodes().count();
        if children + first != count
            || self.ages.len() != count
            || self.vacant.len() + count != self.nodes.len()
        {
            return Err("nodes, children and ages differ in number".to_owned());
        }
        Ok(())
    }
}
