//! What is open in a domain, behind its gate: all of it is plain data with one owner.

use crate::av::AddressVector;
use crate::cntr::OperationCounter;
use crate::cq::{CompletionQueue, NO_QUEUE, QueueEvent};
use crate::endpoint::EndpointTraffic;
use crate::mr::Memories;
use crate::object::ObjectTable;
use crate::wait::{SleepingCall, WaitMethod, WaitState, WaitStep};
use fabric::{Alarm, Doze, Endpoint};

/// Everything by number.
#[derive(Debug)]
pub(crate) struct ProviderState {
    pub(crate) endpoints: ObjectTable<EndpointTraffic>,
    pub(crate) queues: ObjectTable<CompletionQueue>,
    pub(crate) counters: ObjectTable<OperationCounter>,
    pub(crate) vectors: ObjectTable<AddressVector>,
    /// Memory that others may read.
    pub(crate) memory: Memories,
}

impl ProviderState {
    pub(crate) fn new() -> Self {
        Self {
            endpoints: ObjectTable::new(),
            queues: ObjectTable::new(),
            counters: ObjectTable::new(),
            vectors: ObjectTable::new(),
            memory: Memories::default(),
        }
    }

    /// Moves an endpoint's messages, unless so much has ended already: this is where all progress
    /// is made. Once for each call of the program, however much that asks for: what has come must
    /// not wait for a look whether more has.
    #[inline]
    pub(crate) fn progress(&mut self, endpoint: usize, wanted: usize) {
        let traffic = self.endpoints.of(endpoint);
        if traffic.endpoint.known_completions() < wanted {
            traffic.endpoint.progress();
        }
        if traffic.remote_reads.has_requests() {
            // There was no room for the answer.
            traffic.send_responses(&mut self.memory);
        }
    }

    /// The next completion of an endpoint, if one is known, and what of it a queue has to tell.
    /// What another queue is_reported is put there, and a counter counts.
    #[inline(always)]
    pub(crate) fn next_for(&mut self, endpoint: usize, queue: usize) -> Option<Option<QueueEvent>> {
        let ended = self.endpoints.of(endpoint).next()?;
        if let Some(number) = ended.counter {
            self.counters.of(number).count(&ended);
        }
        match ended.event {
            Some((number, event)) if number == queue => Some(Some(event)),
            Some((number, event)) => {
                self.queues.of(number).push(event);
                Some(None)
            }
            None => {
                if ended.is_internal {
                    self.endpoints.of(endpoint).continue_reads(&mut self.memory);
                }
                Some(None)
            }
        }
    }

    /// Moves all endpoints' messages; what ends is kept for who will ask.
    pub(crate) fn move_all(&mut self) {
        for endpoint in self.endpoints.numbers() {
            if self.endpoints.get(endpoint).is_none() {
                continue;
            }
            self.progress(endpoint, usize::MAX);
            while self.next_for(endpoint, NO_QUEUE).is_some() {}
        }
    }

    /// Who is bound to something that is waited for, and its wait_state.
    fn bound(&mut self, to: WaitTarget) -> (&[usize], &mut WaitState) {
        match to {
            WaitTarget::Queue(number) => {
                let CompletionQueue { endpoints, wait_state, .. } = self.queues.of(number);
                (endpoints, wait_state)
            }
            WaitTarget::Counter(number) => {
                let OperationCounter { endpoints, wait_state, .. } = self.counters.of(number);
                (endpoints, wait_state)
            }
        }
    }

    /// Whether threads that wait for this are woken by doorbells of endpoints.
    pub(crate) fn wants_doorbells(&mut self, to: WaitTarget) -> bool {
        self.bound(to).1.wants_doorbells()
    }

    /// Has whoever waits for something be woken from now on, and says whether it may sleep; a
    /// thread that does has to say when it does not any more.
    pub(crate) fn prepare(
        &mut self,
        to: WaitTarget,
        by: WaitMethod,
        domain: &fabric::Domain,
    ) -> (WaitStep, Option<SleepingCall>) {
        if by == WaitMethod::Call && self.bound(to).1.needs_call_alarm() {
            self.make_call_alarm(to, domain);
        }
        let has_news = match to {
            WaitTarget::Queue(number) => self.queues.of(number).has_events(),
            WaitTarget::Counter(number) => self.counters.of(number).changed,
        };
        let mut rest = if has_news { WaitStep::Look } else { WaitStep::Sleep };
        let mut index = 0;
        while let Some(&endpoint) = self.bound(to).0.get(index).filter(|_| rest != WaitStep::Look) {
            index += 1;
            let sleeper = &mut self.endpoints.of(endpoint).endpoint;
            let (mut doze, has_moved) = (sleeper.doze(), sleeper.has_moved());
            if doze == Doze::Deaf {
                doze = self.reopen_doorbell(endpoint);
            }
            if has_moved {
                self.bound_to(endpoint, WaitState::shorten_naps);
            }
            // Its doorbell is empty now; other threads may have been woken by it and not have
            // looked.
            match doze {
                Doze::Sleep => {}
                Doze::Nap => self.bound_to(endpoint, WaitState::wake_long_sleepers),
                _ => self.bound_to(endpoint, WaitState::wake),
            }
            self.endpoints.of(endpoint).is_waited_for = true;
            rest = rest.with(doze);
        }
        match (rest, to, by) {
            // It returns without having said so.
            (WaitStep::Resend, WaitTarget::Counter(_), WaitMethod::Call) => rest = WaitStep::Nap,
            (WaitStep::Resend, ..) => self.report_refusals(to),
            _ => {}
        }
        let asleep = self.bound(to).1.set(by, rest);
        (rest, asleep)
    }

    /// A member has shut an endpoint's doorbell down: gets another one, once the node has given it.
    #[cold]
    fn reopen_doorbell(&mut self, number: usize) -> Doze {
        self.bound_to_with(number, |wait_state, endpoint| wait_state.forget(endpoint));
        if !self.endpoints.of(number).endpoint.reopen_doorbell() {
            return Doze::Never;
        }
        let mut is_watched = true;
        self.bound_to_with(number, |wait_state, endpoint| {
            is_watched &= wait_state.watch(endpoint, None).is_ok();
        });
        if is_watched { self.endpoints.of(number).endpoint.doze() } else { Doze::Never }
    }

    /// One more thread waits for something than did before. Without an alarm it looks in turns.
    #[cold]
    fn make_call_alarm(&mut self, to: WaitTarget, domain: &fabric::Domain) {
        let Ok(alarm) = Alarm::new(domain) else { return };
        let endpoints = self.bound(to).0.to_vec();
        let mut all = endpoints.into_iter();
        if all.all(|number| alarm.watch(&self.endpoints.of(number).endpoint).is_ok()) {
            self.bound(to).1.add_call_alarm(alarm);
        }
    }

    /// The program hears that there is room for what was refused.
    #[cold]
    fn report_refusals(&mut self, to: WaitTarget) {
        for endpoint in self.bound(to).0.to_vec() {
            self.endpoints.of(endpoint).endpoint.refusals_are_told();
        }
    }

    /// A thread does not sleep any more.
    pub(crate) fn end_sleep(&mut self, to: WaitTarget, asleep: &SleepingCall) {
        self.bound(to).1.end_sleep(asleep);
    }

    /// Wakes those who wait for an endpoint, if a call of another thread has left something for
    /// them.
    #[inline(always)]
    pub(crate) fn wake(&mut self, endpoint: usize) {
        if self.endpoints.of(endpoint).is_waited_for {
            self.wake_waiters(endpoint);
        }
    }

    #[cold]
    fn wake_waiters(&mut self, endpoint: usize) {
        let traffic = self.endpoints.of(endpoint);
        if !traffic.endpoint.has_something() {
            return;
        }
        traffic.is_waited_for = false;
        self.bound_to(endpoint, WaitState::wake);
    }

    /// Does something with the waiters of all that an endpoint is bound to.
    fn bound_to(&mut self, endpoint: usize, what: impl Fn(&mut WaitState)) {
        self.bound_to_with(endpoint, |wait_state, _| what(wait_state));
    }

    /// The same, and with the endpoint.
    fn bound_to_with(&mut self, endpoint: usize, mut what: impl FnMut(&mut WaitState, &Endpoint)) {
        let EndpointTraffic { send, receive, endpoint, .. } = self.endpoints.of(endpoint);
        for side in [send, receive] {
            if let Some(number) = side.queue {
                what(&mut self.queues.of(number).wait_state, endpoint);
            }
            if let Some(number) = side.counter {
                what(&mut self.counters.of(number).wait_state, endpoint);
            }
        }
    }
}

/// What endpoints are bound to and a program waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitTarget {
    Queue(usize),
    Counter(usize),
}
