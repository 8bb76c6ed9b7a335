//! Wait objects: how a program sleeps until a queue or a counter has something for it.
//!
//! `FI_WAIT_FD` gives the program a descriptor to poll, after `fi_trywait` has said that it may.
//! `FI_WAIT_UNSPEC` lets the program wait by calls. Each thread that waits by a call has an alarm
//! of its own: of two threads that share an alarm, the first would silence it before the second has
//! looked. The doorbells of endpoints are shared. A thread that empties a doorbell and finds
//! something rings the alarms of the other threads.
//!
//! Inside of a VM nothing wakes a process: there `FI_WAIT_FD` is refused, and a call that waits
//! looks again and again.

use crate::abi::{
    FI_EAGAIN, FI_EINVAL, FI_ENOSYS, FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_MUTEX_COND,
    FI_WAIT_NONE, FI_WAIT_POLLFD, FI_WAIT_SET, FI_WAIT_UNSPEC, FI_WAIT_YIELD,
};
use crate::idle;
use crate::log::say;
use fabric::{Alarm, Doze, Endpoint, NoDoorbell};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The first nap of a sleeper that waits for something that nothing announces. Each further nap in
/// a row is twice as long.
const NAP: Duration = idle::NAP;
/// After so many doublings naps do not get longer: they take a millisecond and a half.
const NAP_DOUBLINGS_MAX: u32 = 5;
/// Threads that sleep in calls for one queue or counter at once. Further threads look again and
/// again.
const SLEEPERS_MAX: usize = 64;

/// The name of a kind of wait object.
pub(crate) fn name(wait: u32) -> &'static str {
    match wait {
        FI_WAIT_NONE => "FI_WAIT_NONE",
        FI_WAIT_UNSPEC => "FI_WAIT_UNSPEC",
        FI_WAIT_SET => "FI_WAIT_SET",
        FI_WAIT_FD => "FI_WAIT_FD",
        FI_WAIT_MUTEX_COND => "FI_WAIT_MUTEX_COND",
        FI_WAIT_YIELD => "FI_WAIT_YIELD",
        FI_WAIT_POLLFD => "FI_WAIT_POLLFD",
        _ => "a wait object that has no name here",
    }
}

/// The next step of a waiting thread, or of the program if it waits by the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitStep {
    /// Look: there is something.
    Look,
    /// Sleep until the alarm rings.
    Sleep,
    /// Sleep until the alarm rings, for a short time at most.
    Nap,
    /// Send the messages again that were refused for want of room.
    Resend,
    /// Nothing rings the alarm: look again and again.
    Poll,
}

impl WaitStep {
    /// The step if this endpoint is waited for as well.
    pub(crate) fn with(self, doze: Doze) -> Self {
        match (self, doze) {
            (Self::Look, _) | (_, Doze::Ready) => Self::Look,
            (Self::Resend, _) | (_, Doze::Refused) => Self::Resend,
            (Self::Poll, _) | (_, Doze::Never | Doze::Deaf) => Self::Poll,
            (Self::Nap, _) | (_, Doze::Nap) => Self::Nap,
            (Self::Sleep, Doze::Sleep) => Self::Sleep,
        }
    }
}

/// How a program waits: it polls the descriptor, or one of its threads makes a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMethod {
    Descriptor,
    Call,
}

/// The alarms of calls that wait, those in use and those that are free, in the order of
/// [`WaitState::calls`]. They are outside of the domain's gate, for a thread that ends a wait
/// without passing it.
type CallAlarms = Arc<Mutex<Vec<Arc<Alarm>>>>;

fn lock(alarms: &CallAlarms) -> MutexGuard<'_, Vec<Arc<Alarm>>> {
    // An alarm is added as a whole.
    alarms.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The wait object of a queue or a counter. This half can be used outside of the domain's gate.
#[derive(Debug)]
pub(crate) struct WaitObject {
    kind: u32,
    /// The alarm whose descriptor the program gets (`FI_WAIT_FD`).
    descriptor: Option<Arc<Alarm>>,
    calls: CallAlarms,
}

impl WaitObject {
    /// A wait object of the kind that a program asks for.
    pub(crate) fn new(domain: &fabric::Domain, kind: u32) -> Result<Self, c_int> {
        let alarm = match kind {
            FI_WAIT_NONE => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => match Alarm::new(domain) {
                Ok(alarm) => Some(Arc::new(alarm)),
                Err(error) => {
                    let result = if kind == FI_WAIT_FD { "is refused" } else { "polls" };
                    say!("{} {result}: {error}", name(kind));
                    if kind == FI_WAIT_FD {
                        return Err(-FI_ENOSYS);
                    }
                    None
                }
            },
            other => {
                say!("{} is refused; FI_WAIT_FD and FI_WAIT_UNSPEC are offered", name(other));
                return Err(-FI_ENOSYS);
            }
        };
        let (descriptor, first) = if kind == FI_WAIT_FD { (alarm, None) } else { (None, alarm) };
        Ok(Self { kind, descriptor, calls: Arc::new(Mutex::new(first.into_iter().collect())) })
    }

    /// The other half, which the state of the domain keeps.
    pub(crate) fn state(&self) -> WaitState {
        let calls = lock(&self.calls).iter().map(SleeperAlarm::new).collect();
        let descriptor = self.descriptor.as_ref().map(SleeperAlarm::new);
        WaitState { armed: false, descriptor, calls, alarms: Arc::clone(&self.calls) }
    }

    /// Whether the program asked for a wait object.
    pub(crate) fn is_one(&self) -> bool {
        self.kind != FI_WAIT_NONE
    }

    /// The commands of `fi_control` that are about wait objects.
    ///
    /// # Safety
    /// The argument is null, or points to what the command's page in libfabric's manual says.
    pub(crate) unsafe fn control(&self, command: c_int, argument: *mut c_void) -> c_int {
        let value = match (command, &self.descriptor) {
            (FI_GETWAITOBJ, _) => self.kind.cast_signed(),
            (FI_GETWAIT, Some(alarm)) => alarm.as_fd().as_raw_fd(),
            _ => return -FI_ENOSYS,
        };
        if argument.is_null() {
            return -FI_EINVAL;
        }
        // SAFETY: for these commands the argument points to a kind of wait object or to a
        // descriptor, which are equally long.
        unsafe { argument.cast::<c_int>().write(value) };
        0
    }

    /// The answer of `fi_trywait`: whether the program may poll the descriptor.
    pub(crate) fn may_sleep(&self, step: WaitStep) -> Result<(), c_int> {
        match step {
            _ if self.kind == FI_WAIT_NONE => Err(-FI_EINVAL),
            WaitStep::Look | WaitStep::Poll | WaitStep::Resend => Err(-FI_EAGAIN),
            WaitStep::Sleep | WaitStep::Nap => Ok(()),
        }
    }

    /// Ends the sleep of all threads that wait. Any thread may call it, also outside of the
    /// domain's gate.
    pub(crate) fn signal(&self) {
        self.descriptor.iter().chain(&*lock(&self.calls)).for_each(|alarm| alarm.ring());
    }
}

/// The alarm of one sleeper: of a call that waits, or of the program that polls the descriptor.
#[derive(Debug)]
struct SleeperAlarm {
    alarm: Arc<Alarm>,
    /// A call that waits uses it now.
    is_taken: bool,
    /// Its sleeper may sleep, and was not woken since.
    is_armed: bool,
    /// Naps in a row; 0 for a sleeper that sleeps until the alarm rings.
    naps: u32,
    /// A timer rings it at the end of the last nap, or has rung it.
    has_timer: bool,
}

impl SleeperAlarm {
    fn new(alarm: &Arc<Alarm>) -> Self {
        let alarm = Arc::clone(alarm);
        Self { alarm, is_taken: false, is_armed: false, naps: 0, has_timer: false }
    }

    /// Arms the alarm if the step lets its sleeper sleep, and says whether it does. Else nothing
    /// changes: several threads may poll one descriptor, and one of them may sleep already.
    fn arm(&mut self, step: WaitStep) -> bool {
        let is_nap = step == WaitStep::Nap;
        let doublings = self.naps.min(NAP_DOUBLINGS_MAX);
        self.naps = if is_nap { doublings + 1 } else { 0 };
        if !is_nap && step != WaitStep::Sleep {
            return false;
        }
        // The caller has just looked and found nothing, so the reasons of earlier rings are gone.
        self.alarm.silence();
        if is_nap || self.has_timer {
            self.alarm.set(is_nap.then(|| NAP * 2_u32.pow(doublings)));
        }
        (self.has_timer, self.is_armed) = (is_nap, true);
        true
    }
}

/// A call that sleeps: its alarm, and the alarm's place in [`WaitState::calls`].
#[derive(Debug)]
pub(crate) struct SleepingCall {
    place: usize,
    pub(crate) alarm: Arc<Alarm>,
}

/// The half of a wait object that is behind the domain's gate.
#[derive(Debug)]
pub(crate) struct WaitState {
    /// At least one of its alarms is armed.
    armed: bool,
    /// The program polls this alarm's descriptor: without a ring it hangs.
    descriptor: Option<SleeperAlarm>,
    /// The alarms of calls.
    calls: Vec<SleeperAlarm>,
    /// The same alarms, for the other half.
    alarms: CallAlarms,
}

impl WaitState {
    /// The state of a wait object that no thread waits for.
    #[cfg(test)]
    pub(crate) fn unused() -> Self {
        let (calls, alarms) = (Vec::new(), CallAlarms::default());
        Self { armed: false, descriptor: None, calls, alarms }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut SleeperAlarm> {
        self.descriptor.iter_mut().chain(&mut self.calls)
    }

    /// Whether its sleepers need endpoints that have doorbells.
    pub(crate) fn wants_doorbells(&self) -> bool {
        self.descriptor.is_some() || !self.calls.is_empty()
    }

    /// Lets an endpoint ring its alarms from now on. The endpoint has a doorbell, or `refused` says
    /// why it has none. The caller wakes the threads that sleep already, so that they look at the
    /// new endpoint.
    pub(crate) fn watch(
        &mut self,
        endpoint: &Endpoint,
        refused: Option<&NoDoorbell>,
    ) -> Result<(), c_int> {
        if !self.wants_doorbells() {
            return Ok(());
        }
        let is_needed = self.descriptor.is_some();
        let watched = match refused {
            Some(error) => Err(error.to_string()),
            None => {
                let mut all = self.all();
                let watched = all.try_for_each(|sleeper| sleeper.alarm.watch(endpoint));
                watched.map_err(|error| error.to_string())
            }
        };
        let Err(error) = watched else { return Ok(()) };
        say!("an endpoint cannot be waited for: {error}");
        if is_needed { Err(-FI_ENOSYS) } else { Ok(()) }
    }

    /// The endpoint rings its alarms no more.
    pub(crate) fn forget(&mut self, endpoint: &Endpoint) {
        self.all().for_each(|sleeper| sleeper.alarm.forget(endpoint));
    }

    /// Wakes all sleepers: there is something for them.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if self.armed {
            self.wake_some(|_| true);
        }
    }

    /// Begins the naps with short ones again, since the messages that the sleepers nap for have
    /// moved.
    pub(crate) fn shorten_naps(&mut self) {
        self.all().for_each(|sleeper| sleeper.naps = sleeper.naps.min(1));
    }

    /// Wakes the sleepers that do not nap: from now on they wait for something that nothing
    /// announces.
    pub(crate) fn wake_long_sleepers(&mut self) {
        self.wake_some(|sleeper| sleeper.naps == 0);
    }

    #[cold]
    fn wake_some(&mut self, which: impl Fn(&SleeperAlarm) -> bool) {
        for sleeper in self.all().filter(|sleeper| sleeper.is_armed && which(sleeper)) {
            sleeper.is_armed = false;
            sleeper.alarm.ring();
        }
        let armed = self.all().any(|sleeper| sleeper.is_armed);
        self.armed = armed;
    }

    /// Whether a call that waits finds no free alarm, and may have a new one.
    pub(crate) fn needs_call_alarm(&self) -> bool {
        let is_full = self.calls.len() >= SLEEPERS_MAX;
        self.wants_doorbells() && !is_full && self.calls.iter().all(|sleeper| sleeper.is_taken)
    }

    /// Adds an alarm for a call. The alarm watches all endpoints that are bound.
    pub(crate) fn add_call_alarm(&mut self, alarm: Alarm) {
        let alarm = Arc::new(alarm);
        self.calls.push(SleeperAlarm::new(&alarm));
        lock(&self.alarms).push(alarm);
    }

    fn free_sleeper(&mut self, method: WaitMethod) -> Option<(usize, &mut SleeperAlarm)> {
        match method {
            WaitMethod::Descriptor => self.descriptor.as_mut().map(|sleeper| (0, sleeper)),
            WaitMethod::Call => {
                self.calls.iter_mut().enumerate().find(|(_, sleeper)| !sleeper.is_taken)
            }
        }
    }

    /// Arms a sleeper's alarm if the step lets it sleep. Returns the alarm of a call that may
    /// sleep; the call must give it back by [`Self::end_sleep`].
    pub(crate) fn begin_sleep(
        &mut self,
        method: WaitMethod,
        step: WaitStep,
    ) -> Option<SleepingCall> {
        let (place, sleeper) = self.free_sleeper(method)?;
        if !sleeper.arm(step) {
            return None;
        }
        sleeper.is_taken = method == WaitMethod::Call;
        let alarm = &sleeper.alarm;
        let sleeping = sleeper.is_taken.then(|| SleepingCall { place, alarm: Arc::clone(alarm) });
        self.armed = true;
        sleeping
    }

    /// The call does not sleep any more.
    pub(crate) fn end_sleep(&mut self, sleeping: &SleepingCall) {
        let sleeper = &mut self.calls[sleeping.place];
        (sleeper.is_taken, sleeper.is_armed) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::registration::DomainKey;
    use fabric_node::registration::{DomainSettings, RegistrationServer};

    #[test]
    fn naps_in_vain_get_longer_and_are_short_again_once_messages_move() {
        let home = tempfile::tempdir().expect("a directory");
        let (path, secret) = (home.path().join("fabric"), "0123456789abcdef");
        let server = RegistrationServer::open(&path, 1).expect("nothing is there");
        let (name, key) = ("blue".to_owned(), DomainKey::new(secret).expect("long enough"));
        let settings = DomainSettings { name, key, endpoints_max: 1, gateways: 0 };
        server.add(settings).expect("memory");
        let domain = fabric::Domain::join(&path, "blue", secret).expect("the node is there");
        let wait = WaitObject::new(&domain, FI_WAIT_FD).expect("a descriptor");
        let mut state = wait.state();
        let naps = |state: &WaitState| state.descriptor.as_ref().expect("one").naps;
        for _ in 0..10 {
            assert!(
                state.begin_sleep(WaitMethod::Descriptor, WaitStep::Nap).is_none(),
                "the program polls the descriptor"
            );
        }
        assert_eq!(naps(&state), NAP_DOUBLINGS_MAX + 1);
        state.shorten_naps();
        assert!(state.begin_sleep(WaitMethod::Descriptor, WaitStep::Nap).is_none());
        assert_eq!(naps(&state), 2);
        assert!(state.begin_sleep(WaitMethod::Descriptor, WaitStep::Sleep).is_none());
        state.shorten_naps();
        assert_eq!(naps(&state), 0, "the sleeper does not nap");
    }
}
