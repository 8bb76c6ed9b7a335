//! WaitObject objects: how a program sleeps until a queue or a counter has something for it.
//!
//! `FI_WAIT_FD` gives it a descriptor to poll, after `fi_trywait` has said that it may;
//! `FI_WAIT_UNSPEC` lets it wait by calls. Each thread that waits by a call has an alarm of its
//! own: of two threads that share one, the first would empty it before the second has looked. The
//! endpoints' doorbells are shared: a thread that empties one and finds something rings the other
//! threads' alarms. Inside of a VM nothing wakes a process: there the first is refused, and the
//! second looks again and again.

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

/// What cannot be told to who sleeps is looked for after so long, and then ever more rarely.
const NAP: Duration = idle::NAP;
/// Doublings of it: a millisecond and a half.
const LONGER_NAPS: u32 = 5;
/// Threads that sleep in calls for one queue or counter at once; more look again and again.
const SLEEPERS_MAX: usize = 64;

/// What a wait object is called.
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

/// What somebody who wants to sleep is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitStep {
    /// Look: there is something.
    Look,
    /// Sleep until it is woken.
    Sleep,
    /// The same, for a short time at most.
    Nap,
    /// Send again what was refused.
    Resend,
    /// Nothing wakes it: look again and again.
    Poll,
}

impl WaitStep {
    /// With one more endpoint.
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

/// Which sleeper: the program, by the descriptor, or a thread, by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMethod {
    Descriptor,
    Call,
}

/// Alarms of threads that wait by calls, whether any does just now or not; in the same order as
/// the state's half has them. Outside of the domain's gate, for who ends a wait from there.
type Calls = Arc<Mutex<Vec<Arc<Alarm>>>>;

fn all(calls: &Calls) -> MutexGuard<'_, Vec<Arc<Alarm>>> {
    // One is added as a whole.
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue's or a counter's wait object.
#[derive(Debug)]
pub(crate) struct WaitObject {
    kind: u32,
    /// What the program has of it, if it has.
    alarm: Option<Arc<Alarm>>,
    calls: Calls,
}

impl WaitObject {
    /// Of the kind that a program asks for.
    pub(crate) fn new(domain: &fabric::Domain, kind: u32) -> Result<Self, c_int> {
        let alarm = match kind {
            FI_WAIT_NONE => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => match Alarm::new(domain) {
                Ok(alarm) => Some(Arc::new(alarm)),
                Err(error) => {
                    let what = if kind == FI_WAIT_FD { "is refused" } else { "looks in turns" };
                    say!("{} {what}: {error}", name(kind));
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
        let (alarm, first) = if kind == FI_WAIT_FD { (alarm, None) } else { (None, alarm) };
        Ok(Self { kind, alarm, calls: Arc::new(Mutex::new(first.into_iter().collect())) })
    }

    /// The half of it that is the state's.
    pub(crate) fn wait_state(&self) -> WaitState {
        let beds = all(&self.calls).iter().map(SleeperAlarm::new).collect();
        let descriptor = self.alarm.as_ref().map(SleeperAlarm::new);
        WaitState { armed: false, descriptor, beds, calls: Arc::clone(&self.calls) }
    }

    /// Whether there is any.
    pub(crate) fn is_one(&self) -> bool {
        self.kind != FI_WAIT_NONE
    }

    /// `fi_control` with what is about wait objects.
    ///
    /// # Safety
    /// The argument is what the command goes with, or null.
    pub(crate) unsafe fn control(&self, command: c_int, argument: *mut c_void) -> c_int {
        let value = match (command, &self.alarm) {
            (FI_GETWAITOBJ, _) => self.kind.cast_signed(),
            (FI_GETWAIT, Some(alarm)) => alarm.as_fd().as_raw_fd(),
            _ => return -FI_ENOSYS,
        };
        if argument.is_null() {
            return -FI_EINVAL;
        }
        // SAFETY: for these commands it is a place for a kind of wait object, or for a descriptor,
        // which are equally long.
        unsafe { argument.cast::<c_int>().write(value) };
        0
    }

    /// What `fi_trywait` says.
    pub(crate) fn may(&self, rest: WaitStep) -> Result<(), c_int> {
        match rest {
            _ if self.kind == FI_WAIT_NONE => Err(-FI_EINVAL),
            WaitStep::Look | WaitStep::Poll | WaitStep::Resend => Err(-FI_EAGAIN),
            WaitStep::Sleep | WaitStep::Nap => Ok(()),
        }
    }

    /// Ends the sleep of all who wait. From any thread, also outside of the domain's gate.
    pub(crate) fn signal(&self) {
        self.alarm.iter().chain(&*all(&self.calls)).for_each(|alarm| alarm.ring());
    }
}

/// What one sleeper sleeps in.
#[derive(Debug)]
struct SleeperAlarm {
    alarm: Arc<Alarm>,
    /// A thread's.
    taken: bool,
    /// Somebody may sleep, and was not woken.
    armed: bool,
    /// In a row; 0 for who sleeps until it is woken.
    naps: u32,
    /// It rings after the last nap, or has.
    timed: bool,
}

impl SleeperAlarm {
    fn new(alarm: &Arc<Alarm>) -> Self {
        let alarm = Arc::clone(alarm);
        Self { alarm, taken: false, armed: false, naps: 0, timed: false }
    }

    /// Who may sleep does so from now on; whether it may. Who may not leaves all as it is: of those
    /// who wait for one descriptor others may sleep.
    fn arm(&mut self, rest: WaitStep) -> bool {
        let is_nap = rest == WaitStep::Nap;
        let naps = self.naps.min(LONGER_NAPS);
        self.naps = if is_nap { naps + 1 } else { 0 };
        if !is_nap && rest != WaitStep::Sleep {
            return false;
        }
        // What it was rung for by the state was before the look that finds nothing.
        self.alarm.silence();
        if is_nap || self.timed {
            self.alarm.set(is_nap.then(|| NAP * 2_u32.pow(naps)));
        }
        (self.timed, self.armed) = (is_nap, true);
        true
    }
}

/// Who sleeps in a call, and by what.
#[derive(Debug)]
pub(crate) struct SleepingCall {
    bed: usize,
    pub(crate) alarm: Arc<Alarm>,
}

/// What of a wait object is behind the domain's gate.
#[derive(Debug)]
pub(crate) struct WaitState {
    /// Any is.
    armed: bool,
    /// The program would hang without being woken.
    descriptor: Option<SleeperAlarm>,
    beds: Vec<SleeperAlarm>,
    calls: Calls,
}

impl WaitState {
    /// Of whom nobody waits for.
    #[cfg(test)]
    pub(crate) fn unused() -> Self {
        Self { armed: false, descriptor: None, beds: Vec::new(), calls: Calls::default() }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut SleeperAlarm> {
        self.descriptor.iter_mut().chain(&mut self.beds)
    }

    /// Whether it needs doorbells to be woken by endpoints.
    pub(crate) fn wants_doorbells(&self) -> bool {
        self.descriptor.is_some() || !self.beds.is_empty()
    }

    /// Sleepers are woken by this endpoint from now on; threads that sleep already are woken once,
    /// to see that. The endpoint has a doorbell, or has been refused one.
    pub(crate) fn watch(
        &mut self,
        endpoint: &Endpoint,
        refused: Option<&NoDoorbell>,
    ) -> Result<(), c_int> {
        if !self.wants_doorbells() {
            return Ok(());
        }
        let must = self.descriptor.is_some();
        let watched = match refused {
            Some(error) => Err(error.to_string()),
            None => {
                let mut all = self.all();
                let watched = all.try_for_each(|bed| bed.alarm.watch(endpoint));
                watched.map_err(|error| error.to_string())
            }
        };
        let Err(error) = watched else { return Ok(()) };
        say!("an endpoint cannot be waited for: {error}");
        if must { Err(-FI_ENOSYS) } else { Ok(()) }
    }

    /// It is not any more.
    pub(crate) fn forget(&mut self, endpoint: &Endpoint) {
        self.all().for_each(|bed| bed.alarm.forget(endpoint));
    }

    /// Something has come for whoever sleeps.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if self.armed {
            self.wake_those(|_| true);
        }
    }

    /// What is looked for has moved on: whoever naps for it begins with short naps again.
    pub(crate) fn shorten_naps(&mut self) {
        self.all().for_each(|bed| bed.naps = bed.naps.min(1));
    }

    /// Something has to be looked for from now on: who sleeps until it is woken is to do that.
    pub(crate) fn wake_long_sleepers(&mut self) {
        self.wake_those(|bed| bed.naps == 0);
    }

    #[cold]
    fn wake_those(&mut self, which: impl Fn(&SleeperAlarm) -> bool) {
        for bed in self.all().filter(|bed| bed.armed && which(bed)) {
            bed.armed = false;
            bed.alarm.ring();
        }
        let armed = self.all().any(|bed| bed.armed);
        self.armed = armed;
    }

    /// Whether a thread that waits by a call needs one more alarm than there are, and may have it.
    pub(crate) fn needs_call_alarm(&self) -> bool {
        let is_any = self.descriptor.is_some() || !self.beds.is_empty();
        is_any && self.beds.len() < SLEEPERS_MAX && self.beds.iter().all(|bed| bed.taken)
    }

    /// Gives it one, which watches all endpoints that are bound.
    pub(crate) fn add_call_alarm(&mut self, alarm: Alarm) {
        let alarm = Arc::new(alarm);
        self.beds.push(SleeperAlarm::new(&alarm));
        all(&self.calls).push(alarm);
    }

    fn bed(&mut self, by: WaitMethod) -> Option<(usize, &mut SleeperAlarm)> {
        match by {
            WaitMethod::Descriptor => self.descriptor.as_mut().map(|bed| (0, bed)),
            WaitMethod::Call => self.beds.iter_mut().enumerate().find(|(_, bed)| !bed.taken),
        }
    }

    /// Somebody sleeps from now on if it may; by what, if by a call.
    pub(crate) fn set(&mut self, by: WaitMethod, rest: WaitStep) -> Option<SleepingCall> {
        let (number, bed) = self.bed(by)?;
        if !bed.arm(rest) {
            return None;
        }
        bed.taken = by == WaitMethod::Call;
        let asleep = bed.taken.then(|| SleepingCall { bed: number, alarm: Arc::clone(&bed.alarm) });
        self.armed = true;
        asleep
    }

    /// It does not any more.
    pub(crate) fn end_sleep(&mut self, asleep: &SleepingCall) {
        let bed = &mut self.beds[asleep.bed];
        (bed.taken, bed.armed) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::registration::DomainKey;
    use fabric_node::registration::{DomainSettings, RegistrationServer};

    #[test]
    fn who_naps_in_vain_naps_ever_longer_and_shortly_again_once_something_moves() {
        let home = tempfile::tempdir().expect("a directory");
        let (path, secret) = (home.path().join("fabric"), "0123456789abcdef");
        let server = RegistrationServer::open(&path, 1).expect("nothing is there");
        let (name, key) = ("blue".to_owned(), DomainKey::new(secret).expect("long enough"));
        let settings = DomainSettings { name, key, endpoints_max: 1, gateways: 0 };
        server.add(settings).expect("memory");
        let domain = fabric::Domain::join(&path, "blue", secret).expect("the node is there");
        let wait = WaitObject::new(&domain, FI_WAIT_FD).expect("a descriptor");
        let mut wait_state = wait.wait_state();
        let naps = |wait_state: &WaitState| wait_state.descriptor.as_ref().expect("one").naps;
        for _ in 0..10 {
            assert!(
                wait_state.set(WaitMethod::Descriptor, WaitStep::Nap).is_none(),
                "it has the program wait"
            );
        }
        assert_eq!(naps(&wait_state), LONGER_NAPS + 1);
        wait_state.shorten_naps();
        assert!(wait_state.set(WaitMethod::Descriptor, WaitStep::Nap).is_none());
        assert_eq!(naps(&wait_state), 2);
        assert!(wait_state.set(WaitMethod::Descriptor, WaitStep::Sleep).is_none());
        wait_state.shorten_naps();
        assert_eq!(naps(&wait_state), 0, "it sleeps until it is woken");
    }
}
