//! Seal contexts: a sealed page's entry has the number of its context, in 16 bits.
//!
//! A context is a family's data key and the salt of an opening. It is made when a page is first
//! sealed with them, and goes when no page refers to it any more. So their count follows the
//! openings whose pages are still there, and not all openings of the pool's life.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The most contexts: a page's entry has 16 bits for a context, and 0 is none.
pub(crate) const CONTEXTS_MAX: usize = u16::MAX as usize;

/// The digits of a salt.
const SALT_DIGITS: usize = 32;

/// A context. It is part of a checkpoint, so a field's name is part of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealContext {
    /// Its number in entries.
    context: u16,
    /// The family of volumes.
    pub(crate) family: u32,
    /// Which of the family's data keys.
    pub(crate) version: u32,
    /// The opening's salt, in hexadecimal digits, the highest first.
    salt: String,
    /// Pages that refer to it.
    live: u64,
}

impl SealContext {
    /// The opening's salt.
    pub(crate) fn salt(&self) -> u128 {
        u128::from_str_radix(&self.salt, 16).unwrap_or(0)
    }
}

/// All contexts of a pool.
#[derive(Debug, Default)]
pub(super) struct SealContexts {
    /// By their numbers.
    list: Vec<Option<SealContext>>,
    count: usize,
    /// The salt of this opening, and the contexts that have it.
    salt: u128,
    current: HashMap<(u32, u32), u16>,
    /// A context has lost its last page.
    has_lost_last: bool,
}

impl SealContexts {
    pub(super) fn state(&self) -> Vec<SealContext> {
        self.list.iter().flatten().cloned().collect()
    }

    /// The contexts of a checkpoint.
    ///
    /// # Errors
    /// If a field has a value that it cannot have.
    pub(super) fn from_state(state: Vec<SealContext>) -> Result<Self, String> {
        let mut contexts = Self::default();
        for context in state {
            let digits = context.salt.bytes();
            let is_salt = context.salt.len() == SALT_DIGITS
                && digits.into_iter().all(|digit| digit.is_ascii_hexdigit());
            let at = usize::from(context.context);
            if at == 0 || !is_salt || contexts.get(context.context).is_some() {
                return Err(format!("the checkpoint's seal context {at} is senseless"));
            }
            contexts.put(at, context);
        }
        Ok(contexts)
    }

    fn put(&mut self, at: usize, context: SealContext) {
        if self.list.len() <= at {
            self.list.resize(at + 1, None);
        }
        self.list[at] = Some(context);
        self.count += 1;
    }

    /// The rows that are applied from here on are of the opening with this salt.
    pub(super) fn set_salt(&mut self, salt: u128) {
        self.salt = salt;
        self.current.clear();
        for at in 0..self.list.len() {
            let Some(context) = &self.list[at] else { continue };
            if context.salt() == salt {
                self.current.insert((context.family, context.version), at as u16);
            } else if context.live == 0 {
                self.drop_at(at);
            }
        }
    }

    fn drop_at(&mut self, at: usize) {
        self.list[at] = None;
        self.count -= 1;
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Whether this opening has a context for a data key.
    pub(super) fn has_current(&self, family: u32, version: u32) -> bool {
        self.current.contains_key(&(family, version))
    }

    pub(super) fn get(&self, number: u16) -> Option<&SealContext> {
        self.list.get(usize::from(number))?.as_ref()
    }

    /// The number of this opening's context of a data key; `None` if there are too many.
    pub(super) fn number(&mut self, family: u32, version: u32) -> Option<u16> {
        if let Some(&number) = self.current.get(&(family, version)) {
            return Some(number);
        }
        let free = self.list.iter().skip(1).position(Option::is_none);
        let at = free.map_or(self.list.len().max(1), |at| at + 1);
        let number = u16::try_from(at).ok()?;
        let salt = format!("{:032x}", self.salt);
        self.put(at, SealContext { context: number, family, version, salt, live: 0 });
        self.current.insert((family, version), number);
        Some(number)
    }

    /// A page refers to this context from here on.
    pub(super) fn gain(&mut self, number: u16) {
        if let Some(Some(context)) = self.list.get_mut(usize::from(number)) {
            context.live = context.live.saturating_add(1);
        }
    }

    /// A page refers to it no more.
    pub(super) fn lose(&mut self, number: u16) {
        let at = usize::from(number);
        let Some(Some(context)) = self.list.get_mut(at) else { return };
        // A damaged or hostile count has no meaning and does no harm: a page whose context is
        // gone cannot be opened.
        context.live = context.live.saturating_sub(1);
        let key = (context.family, context.version);
        self.has_lost_last |= context.live == 0;
        if context.live == 0 && self.current.get(&key) != Some(&number) {
            self.drop_at(at);
        }
    }

    /// Whether a context has lost its last page since this was asked.
    pub(super) fn take_lost_last(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_last)
    }

    /// Pages that are sealed with data keys of a family other than this key.
    pub(super) fn live_of_others(&self, family: u32, version: u32) -> u64 {
        let others = self.list.iter().flatten();
        let others =
            others.filter(|context| context.family == family && context.version != version);
        others.fold(0, |sum, context| sum.saturating_add(context.live))
    }
}
