//! Operations whose completion no queue reports to the program. They need contexts all the same: a
//! counter counts them, or the program may cancel them, or they are the provider's own.

use fabric::{Completion, Done, RequestContext, RequestFailure};
use std::collections::HashMap;

/// Contexts from here on are the provider's. The program's contexts are addresses, and these are in
/// the kernel's half, which no program has.
const PROVIDER_CONTEXTS: u64 = 0xffff_8000_0000_0000;
/// The context of an operation for which the program has given null. The endpoint itself uses zero
/// for the failure of an operation without a context.
const NULL_CONTEXT: RequestContext = RequestContext(PROVIDER_CONTEXTS);

/// The unreported operations of an endpoint by the provider's contexts.
#[derive(Debug, Default)]
pub(crate) struct UnreportedOperations {
    operations: HashMap<u64, UnreportedOperation>,
    /// The number of unreported operations that have ever begun.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnreportedOperation {
    /// The program's context.
    context: u64,
    /// It is a receive for several messages, which ends when its buffer is given back.
    multi: bool,
    /// The purpose of a message of the provider's own.
    role: Option<MessageRole>,
}

/// The purpose of a message of the provider's own. All of them are parts of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageRole {
    /// The receive of a request, into this place.
    RequestReceive(usize),
    /// A response that is sent, with content of the memory that has this key.
    ResponseSend { key: Option<u64> },
    /// The receive of a response that must have so many bytes. A queue reports the end of the read,
    /// or only its failure.
    ResponseReceive { is_reported: bool, bytes: usize },
}

/// The owner of a completion, by its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextOwner {
    /// The program, which knows the operation by this context. A queue reports it.
    Reported(u64),
    /// The program, which knows the operation by this context. A queue reports only its failure.
    Unreported(u64),
    /// The program, which has no context for this injected message.
    Injected,
    /// The provider: a message of its own, for a read that the program knows by this context.
    Provider(MessageRole, u64),
}

/// The context of an operation that a queue reports.
#[inline]
pub(crate) fn reported_context(context: u64) -> RequestContext {
    if context == 0 { NULL_CONTEXT } else { RequestContext(context) }
}

impl UnreportedOperations {
    /// Adds an operation of the program, and returns its context.
    pub(crate) fn add(&mut self, context: u64, multi: bool) -> RequestContext {
        self.keep(UnreportedOperation { context, multi, role: None })
    }

    /// Adds a message of the provider's own, and returns its context. The program knows the read
    /// that the message is for by `context`.
    pub(crate) fn add_internal(&mut self, role: MessageRole, context: u64) -> RequestContext {
        self.keep(UnreportedOperation { context, multi: false, role: Some(role) })
    }

    fn keep(&mut self, operation: UnreportedOperation) -> RequestContext {
        self.count += 1;
        let ours = PROVIDER_CONTEXTS + self.count % !PROVIDER_CONTEXTS;
        self.operations.insert(ours, operation);
        RequestContext(ours)
    }

    /// Removes an operation that has not begun, or has ended.
    pub(crate) fn forget(&mut self, context: RequestContext) {
        self.operations.remove(&context.0);
    }

    /// Removes the operation of a completion, unless its buffer takes further messages.
    pub(crate) fn completed(&mut self, completion: &Completion) {
        let RequestContext(ours) = completion.context;
        let multi = self.operations.get(&ours).is_some_and(|operation| operation.multi);
        let cancelled = completion.failure == Some(RequestFailure::Cancelled);
        if !multi || cancelled || completion.done == Done::Released {
            self.operations.remove(&ours);
        }
    }

    /// The provider's context of an operation that the program knows by its own context.
    pub(crate) fn find(&self, context: u64) -> Option<RequestContext> {
        let same = self
            .operations
            .iter()
            .filter(|(_, known)| known.context == context && known.role.is_none());
        // Of several operations the first one, as among reported ones.
        same.map(|(&ours, _)| ours).min().map(RequestContext)
    }

    /// The owner of a completion that has this context.
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
    fn unreported_operations_are_known_until_they_end() {
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
