//! The objects that are open in a domain, behind its gate: plain data with one owner.

use crate::av::AddressVector;
use crate::cntr::OperationCounter;
use crate::cq::{CompletionQueue, NO_QUEUE, QueueEvent};
use crate::endpoint::EndpointTraffic;
use crate::mr::Memories;
use crate::object::ObjectTable;
use crate::wait::{SleepingCall, WaitMethod, WaitState, WaitStep};
use fabric::{Alarm, Doze, Endpoint};

/// The objects of a domain by number, and its registered memory by key.
#[derive(Debug)]
pub(crate) struct ProviderState {
    pub(crate) endpoints: ObjectTable<EndpointTraffic>,
    pub(crate) queues: ObjectTable<CompletionQueue>,
    pub(crate) counters: ObjectTable<OperationCounter>,
    pub(crate) vectors: ObjectTable<AddressVector>,
    /// Memory that other processes may read.
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

    /// Moves the messages of an endpoint, unless `wanted` operations have ended already. All
    /// progress is made here. A call of the program does this once for each endpoint, however many
    /// completions it asks for: completions that are known must not wait for a look for more.
    #[inline]
    pub(crate) fn progress(&mut self, endpoint: usize, wanted: usize) {
        let traffic = self.endpoints.of(endpoint);
        if traffic.endpoint.known_completions() < wanted {
            traffic.endpoint.progress();
        }
        if traffic.remote_reads.has_requests() {
            // There was no room for the response before.
            traffic.send_responses(&mut self.memory);
        }
    }

    /// Takes the next completion of an endpoint and lets its counter count it. Returns its event
    /// if that is for this queue; the event of another queue is put there. `None`: no completion is
    /// known. `Some(None)`: there was one, but no event for this queue.
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

    /// Moves the messages of all endpoints. Events stay in their queues until the program reads
    /// them.
    pub(crate) fn progress_all(&mut self) {
        for endpoint in self.endpoints.numbers() {
            if self.endpoints.get(endpoint).is_none() {
                continue;
            }
            self.progress(endpoint, usize::MAX);
            while self.next_for(endpoint, NO_QUEUE).is_some() {}
        }
    }

    /// The endpoints that are bound to a queue or counter, and its wait state.
    fn wait_parts(&mut self, target: WaitTarget) -> (&[usize], &mut WaitState) {
        match target {
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
    pub(crate) fn wants_doorbells(&mut self, target: WaitTarget) -> bool {
        self.wait_parts(target).1.wants_doorbells()
    }

    /// Prepares a wait for a queue or counter: each bound endpoint announces from now on what comes
    /// for it. Returns the next step of the waiting thread. A call that may sleep gets its alarm
    /// as well, and must give it back by [`Self::end_sleep`].
    pub(crate) fn prepare(
        &mut self,
        target: WaitTarget,
        method: WaitMethod,
        domain: &fabric::Domain,
    ) -> (WaitStep, Option<SleepingCall>) {
        if method == WaitMethod::Call && self.wait_parts(target).1.needs_call_alarm() {
            self.make_call_alarm(target, domain);
        }
        let has_news = match target {
            WaitTarget::Queue(number) => self.queues.of(number).has_events(),
            WaitTarget::Counter(number) => self.counters.of(number).changed,
        };
        let mut step = if has_news { WaitStep::Look } else { WaitStep::Sleep };
        let mut index = 0;
        while let Some(&endpoint) =
            self.wait_parts(target).0.get(index).filter(|_| step != WaitStep::Look)
        {
            index += 1;
            step = step.with(self.prepare_endpoint(endpoint));
        }
        match (step, target, method) {
            // A wait for a counter has no way to tell the program of refused messages.
            (WaitStep::Resend, WaitTarget::Counter(_), WaitMethod::Call) => step = WaitStep::Nap,
            (WaitStep::Resend, ..) => self.report_refusals(target),
            _ => {}
        }
        let sleeping = self.wait_parts(target).1.begin_sleep(method, step);
        (step, sleeping)
    }

    /// Lets an endpoint ring its doorbell when something comes for it.
    fn prepare_endpoint(&mut self, endpoint: usize) -> Doze {
        let sleeper = &mut self.endpoints.of(endpoint).endpoint;
        let (mut doze, has_moved) = (sleeper.doze(), sleeper.has_moved());
        if doze == Doze::Deaf {
            doze = self.reopen_doorbell(endpoint);
        }
        if has_moved {
            self.each_wait_state(endpoint, WaitState::shorten_naps);
        }
        // The doorbell is empty now. It may have woken other threads that have not looked yet, so
        // these are woken by their alarms.
        match doze {
            Doze::Sleep => {}
            Doze::Nap => self.each_wait_state(endpoint, WaitState::wake_long_sleepers),
            _ => self.each_wait_state(endpoint, WaitState::wake),
        }
        self.endpoints.of(endpoint).is_waited_for = true;
        doze
    }

    /// Replaces the doorbell of an endpoint, which another member has shut down, if the node has
    /// given a new one by now.
    #[cold]
    fn reopen_doorbell(&mut self, number: usize) -> Doze {
        self.each_wait_state_with(number, |wait_state, endpoint| wait_state.forget(endpoint));
        if !self.endpoints.of(number).endpoint.reopen_doorbell() {
            return Doze::Never;
        }
        let mut is_watched = true;
        self.each_wait_state_with(number, |wait_state, endpoint| {
            is_watched &= wait_state.watch(endpoint, None).is_ok();
        });
        if is_watched { self.endpoints.of(number).endpoint.doze() } else { Doze::Never }
    }

    /// Makes an alarm for one more thread that waits by a call. A thread without an alarm polls.
    #[cold]
    fn make_call_alarm(&mut self, target: WaitTarget, domain: &fabric::Domain) {
        let Ok(alarm) = Alarm::new(domain) else { return };
        let endpoints = self.wait_parts(target).0.to_vec();
        let mut all = endpoints.into_iter();
        if all.all(|number| alarm.watch(&self.endpoints.of(number).endpoint).is_ok()) {
            self.wait_parts(target).1.add_call_alarm(alarm);
        }
    }

    /// Notes that the caller tells the program to send refused messages again.
    #[cold]
    fn report_refusals(&mut self, target: WaitTarget) {
        for endpoint in self.wait_parts(target).0.to_vec() {
            self.endpoints.of(endpoint).endpoint.refusals_are_told();
        }
    }

    /// A call does not sleep any more.
    pub(crate) fn end_sleep(&mut self, target: WaitTarget, sleeping: &SleepingCall) {
        self.wait_parts(target).1.end_sleep(sleeping);
    }

    /// Wakes the threads that wait for an endpoint, if a call of another thread has left something
    /// for them.
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
        self.each_wait_state(endpoint, WaitState::wake);
    }

    /// Calls a function with the wait state of each queue and counter that an endpoint is bound to.
    fn each_wait_state(&mut self, endpoint: usize, call: impl Fn(&mut WaitState)) {
        self.each_wait_state_with(endpoint, |wait_state, _| call(wait_state));
    }

    /// The same for a function that also takes the endpoint.
    fn each_wait_state_with(
        &mut self,
        endpoint: usize,
        mut call: impl FnMut(&mut WaitState, &Endpoint),
    ) {
        let EndpointTraffic { send, receive, endpoint, remote_reads, .. } =
            self.endpoints.of(endpoint);
        for side in [&*send, &*receive] {
            if let Some(number) = side.queue {
                call(&mut self.queues.of(number).wait_state, endpoint);
            }
        }
        for number in [send.counter, receive.counter, remote_reads.counter].into_iter().flatten() {
            call(&mut self.counters.of(number).wait_state, endpoint);
        }
    }
}

/// A queue or a counter that a program waits for, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitTarget {
    Queue(usize),
    Counter(usize),
}
