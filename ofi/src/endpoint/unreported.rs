//! Contexts of operations whose completion is not told, but which a counter counts or the program
//! may want to cancel.

use fabric::{Completion, Done, RequestContext, RequestFailure};
use std::collections::HashMap;

/// Contexts from here on are ours: addresses that no program has (the kernel's half).
const PROVIDER_CONTEXTS: u64 = 0xffff_8000_0000_0000;
/// A program's null. Zero by itself is what an operation that nobody knows fails with.
const NULL_CONTEXT: RequestContext = RequestContext(PROVIDER_CONTEXTS);

/// Which operations are unreported, and what the program knows them by.
#[derive(Debug, Default)]
pub(crate) struct UnreportedOperations {
    operations: HashMap<u64, UnreportedOperation>,
    /// How many there ever were.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnreportedOperation {
    /// The program's.
    context: u64,
    /// A buffer for several messages: it ends when it is given back.
    multi: bool,
    /// What it is for, if it is one of ours.
    role: Option<MessageRole>,
}

/// What a message is for that is ours and not the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageRole {
    /// A question comes, to this place.
    RequestReceive(usize),
    /// An answer goes, with what is in the memory that has this key.
    ResponseSend { key: Option<u64> },
    /// An answer comes, so long; its end is told to the program, or only if it fails.
    ResponseReceive { is_reported: bool, bytes: usize },
}

/// Whose completion it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextOwner {
    /// The program's: told in its queue, by its context.
    Reported(u64),
    /// Told only if it failed.
    Unreported(u64),
    /// An injected message's, which the program knows by nothing.
    Injected,
    /// One of ours, for something that the program knows by this context.
    Provider(MessageRole, u64),
}

/// The context of an operation that is told.
#[inline]
pub(crate) fn reported_context(context: u64) -> RequestContext {
    if context == 0 { NULL_CONTEXT } else { RequestContext(context) }
}

impl UnreportedOperations {
    /// A context for an operation that is not told.
    pub(crate) fn add(&mut self, context: u64, multi: bool) -> RequestContext {
        self.keep(UnreportedOperation { context, multi, role: None })
    }

    /// A context for a message of ours, for something that the program knows by its own.
    pub(crate) fn add_internal(&mut self, role: MessageRole, context: u64) -> RequestContext {
        self.keep(UnreportedOperation { context, multi: false, role: Some(role) })
    }

    fn keep(&mut self, operation: UnreportedOperation) -> RequestContext {
        self.count += 1;
        let ours = PROVIDER_CONTEXTS + self.count % !PROVIDER_CONTEXTS;
        self.operations.insert(ours, operation);
        RequestContext(ours)
    }

    /// It has not begun.
    pub(crate) fn forget(&mut self, context: RequestContext) {
        self.operations.remove(&context.0);
    }

    /// This is a completion of it, and unless it has a buffer for several messages the last one.
    pub(crate) fn completed(&mut self, completion: &Completion) {
        let RequestContext(ours) = completion.context;
        let multi = self.operations.get(&ours).is_some_and(|operation| operation.multi);
        let cancelled = completion.failure == Some(RequestFailure::Cancelled);
        if !multi || cancelled || completion.done == Done::Released {
            self.operations.remove(&ours);
        }
    }

    /// Under which context an operation that the program knows by its own was begun, if quietly.
    pub(crate) fn find(&self, context: u64) -> Option<RequestContext> {
        let same = self
            .operations
            .iter()
            .filter(|(_, known)| known.context == context && known.role.is_none());
        // The one that was begun first, as among those that are told.
        same.map(|(&ours, _)| ours).min().map(RequestContext)
    }

    /// Whose completion it is.
    #[inline]
    pub(crate) fn owner_of(&self, context: RequestContext) -> ContextOwner {
        match context {
            RequestContext(0) => ContextOwner::Injected,
            NULL_CONTEXT => ContextOwner::Reported(0),
            RequestContext(other) if other < PROVIDER_CONTEXTS => ContextOwner::Reported(other),
            RequestContext(ours) => match self.operations.get(&ours) {
                Some(&UnreportedOperation { context, role: Some(role), .. }) => {
                    ContextOwner::Provider(role, context)
                }
                Some(operation) => ContextOwner::Unreported(operation.context),
                None => ContextOwner::Reported(ours),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::{Address, Class};

    #[test]
    fn a_programs_contexts_come_back_as_they_were() {
        let operations = UnreportedOperations::default();
        for context in [0, 1, 0x7fff_dead_beef, PROVIDER_CONTEXTS + 9, u64::MAX] {
            assert_eq!(
                operations.owner_of(reported_context(context)),
                ContextOwner::Reported(context)
            );
        }
        assert_eq!(operations.owner_of(RequestContext(0)), ContextOwner::Injected);
    }

    fn ended(context: RequestContext, done: Done) -> Completion {
        Completion { context, done, class: Class::Untagged, tag: 0, bytes: 0, failure: None }
    }

    #[test]
    fn quiet_operations_are_known_until_they_end() {
        let mut operations = UnreportedOperations::default();
        let (first, second) = (operations.add(5, false), operations.add(5, false));
        assert_ne!(first, second);
        assert_eq!(operations.find(5), Some(first));
        assert_eq!(operations.find(6), None);
        assert_eq!(operations.owner_of(first), ContextOwner::Unreported(5));
        operations.completed(&ended(first, Done::Send));
        assert_eq!(operations.find(5), Some(second));
        operations.forget(second);
        assert_eq!(operations.find(5), None);
    }

    #[test]
    fn a_shared_buffer_is_known_until_it_is_given_back() {
        let mut operations = UnreportedOperations::default();
        let source = Address { host: 1, incarnation: 1, slot: 1 };
        let received = Done::Receive { source, data: None, start: std::ptr::null_mut() };
        let buffer = operations.add(5, true);
        operations.completed(&ended(buffer, received));
        assert_eq!(operations.owner_of(buffer), ContextOwner::Unreported(5));
        operations.completed(&ended(buffer, Done::Released));
        assert_eq!(operations.find(5), None);
        let buffer = operations.add(6, true);
        operations.completed(&Completion {
            failure: Some(RequestFailure::Cancelled),
            ..ended(buffer, received)
        });
        assert_eq!(operations.find(6), None);
    }
}
