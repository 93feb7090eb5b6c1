//! Which pages of the pools are held, and by how many: sequences and kept prefixes share them.
//!
//! Nobody writes to a page that is shared: a sequence shares whole pages only, and writes behind them.

/// The page ids of an engine's pools.
pub(crate) struct Pages {
    /// Holders of every page.
    holders: Vec<u32>,
    free: Vec<u32>,
}

impl Pages {
    /// `count` free pages.
    pub fn new(count: usize) -> Pages {
        Pages { holders: vec![0; count], free: (0..count as u32).rev().collect() }
    }

    /// A free page, which then has one holder.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.holders[page as usize] = 1;
        Some(page)
    }

    /// One more holder of a page that is held.
    pub fn hold(&mut self, page: u32) {
        self.holders[page as usize] += 1;
    }

    /// One holder less; the page is free after the last one.
    pub fn release(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// Holders of a page.
    pub fn holders(&self, page: u32) -> u32 {
        self.holders[page as usize]
    }

    /// Checks that `held`, every holder's pages, are what is counted, and that all others are free.
    pub fn check(&self, held: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut counted = vec![0; self.holders.len()];
        for page in held {
            *counted.get_mut(page as usize).ok_or(format!("page {page} does not exist"))? += 1;
        }
        if let Some(page) = (0..counted.len()).find(|&page| counted[page] != self.holders[page]) {
            return Err(format!(
                "page {page} has {} holders, {} are counted",
                counted[page], self.holders[page]
            ));
        }
        for &page in &self.free {
            // Each once: what is found is taken out.
            if std::mem::replace(&mut counted[page as usize], 1) > 0 {
                return Err(format!("page {page} is free and held, or free twice"));
            }
        }
        match counted.iter().position(|&holders| holders == 0) {
            Some(page) => Err(format!("page {page} is neither free nor held")),
            None => Ok(()),
        }
    }
}
