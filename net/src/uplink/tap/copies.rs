//! A tap that gets copies, for a listener on the host: written by a thread that may wait, and never
//! read.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use virtio::Segment;

use super::{OpenedTap, open, write};
use crate::finish::Finisher;
use crate::frame::Burst;
use crate::offload::Offload;
use crate::port::PortCounters;

/// How often an interface that is away is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct CopyTap {
    name: String,
    interface: Option<OpenedTap>,
    /// When it was looked for in vain, or looked at.
    looked: Option<Instant>,
    /// It is set up, as far as was seen.
    is_up: bool,
    /// That it is away was said.
    is_away: bool,
    burst: Burst,
    finisher: Finisher,
    /// Room for a frame in too many pieces, which copies never are.
    whole: Vec<u8>,
    /// The counters that finishing needs. They are not shown.
    counters: PortCounters,
}

impl CopyTap {
    /// The interface of this name, which is opened by [`CopyTap::look`].
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            interface: None,
            looked: None,
            is_up: false,
            is_away: false,
            burst: Burst::new(),
            finisher: Finisher::new(),
            whole: Vec::new(),
            counters: PortCounters::default(),
        }
    }

    /// Whether a copy would be heard: the interface is open, and set up as far as was seen lately.
    pub(crate) fn is_up(&mut self) -> bool {
        let is_early = self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY);
        if self.look() && !is_early {
            self.looked = Some(Instant::now());
            // Writing to an interface shows that it is gone. If the question fails, the last answer
            // stays.
            let is_running = link::interface_is_running(&self.name).unwrap_or(self.is_up);
            if std::mem::replace(&mut self.is_up, is_running) && !is_running {
                let interface = &self.name;
                tracing::warn!(
                    interface,
                    "a mirror's tap is set down: no program receives its \
                                           frames"
                );
            }
        }
        self.interface.is_some() && self.is_up
    }

    /// Whether the interface is open; if it was looked for long ago, it is looked for again.
    fn look(&mut self) -> bool {
        let is_early = self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY);
        if self.interface.is_some() || is_early {
            return self.interface.is_some();
        }
        match open::open(&self.name) {
            Ok(opened) => {
                if std::mem::take(&mut self.is_away) {
                    tracing::info!(interface = self.name, "a mirror's tap is back");
                }
                // It is set up by being opened, or was not set down.
                (self.interface, self.looked, self.is_up) = (Some(opened), None, true);
            }
            Err(error) => {
                self.looked = Some(Instant::now());
                if !std::mem::replace(&mut self.is_away, true) {
                    let error = error.to_string();
                    tracing::warn!(error, "a mirror's tap is gone; the node looks for it");
                }
            }
        }
        self.interface.is_some()
    }

    /// Writes a frame, with what is still to be done to it. `false` when it went nowhere.
    pub(crate) fn put(&mut self, bytes: &[u8], offload: Offload) -> bool {
        if !self.look() {
            return false;
        }
        let Self { interface: Some(interface), burst, finisher, whole, counters, .. } = self else {
            return false;
        };
        let segment = Segment { addr: bytes.as_ptr().cast_mut(), len: bytes.len() as u32 };
        // SAFETY: the bytes stay where they are until this returns, and they are not written to.
        // The burst, whose pieces are only read, is cleared before that.
        let pushed = unsafe { burst.push(&[segment], 0) };
        let Ok(frame) = pushed else { return false };
        frame.offload = offload;
        let (frame, offers) = (&burst.frames()[0], interface.offers());
        let written = finisher.each(frame, burst, &offers, counters, |frame| {
            write(interface, frame, 0, burst, whole)
        });
        burst.clear();
        if let Err(Errno::BADFD | Errno::NODEV | Errno::BADF) = written {
            self.interface = None;
        }
        written.is_ok()
    }
}
