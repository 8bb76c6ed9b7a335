//! A switch with its ports, on one sidecore: moves bursts from port to port.

use std::fmt;
use std::sync::Arc;

use sidecore::{Progress, Wake};

use crate::frame::{BURST_FRAMES_MAX, Burst};
use crate::port::{Chosen, Port, PortCounters};
use crate::reason::Reason;
use crate::switch::{AddError, FrameRoute, PortOptions, Switch};

/// How often a part of the table of addresses is looked at for what is too old: all of it in half a
/// minute.
const AGE_EVERY_NS: u64 = 100_000_000;

/// A port in its place.
struct BridgePort {
    port: Box<dyn Port>,
    counters: Arc<PortCounters>,
    /// The frames of the present burst that the port gets.
    chosen: Vec<Chosen>,
    /// It has to be flushed.
    dirty: bool,
}

/// See the module's text.
pub struct Bridge {
    switch: Switch,
    /// In boxes, so that a port can be taken out for its turn at the price of a pointer.
    places: Vec<Option<Box<BridgePort>>>,
    burst: Burst,
    /// Ports that get something of the present burst.
    touched: Vec<u16>,
    /// Whose turn it is first.
    turn: usize,
    aged_ns: u64,
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.places.iter().flatten().map(|place| &place.port);
        f.debug_list().entries(ports).finish()
    }
}

impl Bridge {
    /// Without ports. For the seed see [`Switch::new`].
    pub fn new(seed: u64) -> Self {
        Self {
            switch: Switch::new(seed),
            places: Vec::new(),
            burst: Burst::new(),
            touched: Vec::with_capacity(crate::switch::PORTS_MAX),
            turn: 0,
            aged_ns: 0,
        }
    }

    /// The switch.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Adds a port, and gives its number.
    ///
    /// # Errors
    /// Why the switch does not take it.
    pub fn add(
        &mut self,
        options: PortOptions,
        port: Box<dyn Port>,
        counters: Arc<PortCounters>,
    ) -> Result<u16, AddError> {
        self.add_for(None, options, port, counters)
    }

    /// The same for a port of another node: see [`Switch::add_for`].
    ///
    /// # Errors
    /// Why the switch does not take it.
    pub fn add_for(
        &mut self,
        owner: Option<usize>,
        options: PortOptions,
        port: Box<dyn Port>,
        counters: Arc<PortCounters>,
    ) -> Result<u16, AddError> {
        let number = self.switch.add_for(owner, options)?;
        let chosen = Vec::with_capacity(BURST_FRAMES_MAX);
        let place = Some(Box::new(BridgePort { port, counters, chosen, dirty: false }));
        match self.places.get_mut(usize::from(number)) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        Ok(number)
    }

    /// Takes a port out.
    pub fn remove(&mut self, number: u16) -> Option<Box<dyn Port>> {
        let place = self.places.get_mut(usize::from(number))?.take()?;
        self.switch.remove(number);
        Some(place.port)
    }

    /// Moves one burst of each port to its receivers.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        let mut progress = Progress::Idle;
        let count = self.places.len();
        if count == 0 {
            return progress;
        }
        self.turn = (self.turn + 1) % count;
        for step in 0..count {
            let from = (self.turn + step) % count;
            progress |= self.forward(from, now_ns);
        }
        for place in self.places.iter_mut().flatten() {
            if std::mem::take(&mut place.dirty) {
                place.port.flush();
            }
        }
        if now_ns.saturating_sub(self.aged_ns) >= AGE_EVERY_NS {
            self.aged_ns = now_ns;
            self.switch.age(now_ns);
        }
        progress
    }

    fn forward(&mut self, from: usize, now_ns: u64) -> Progress {
        let Some(mut place) = self.places[from].take() else { return Progress::Idle };
        let progress = place.port.receive(&mut self.burst, now_ns);
        if progress.is_busy() {
            self.choose(from as u16, &place.counters, now_ns);
            self.hand_out(now_ns);
            place.port.release(&mut self.burst);
            assert!(self.burst.is_empty(), "a port keeps what it released");
            place.dirty = true;
        }
        self.places[from] = Some(place);
        progress
    }

    /// Chooses the receivers of each frame of the burst.
    fn choose(&mut self, from: u16, counters: &PortCounters, now_ns: u64) {
        let Self { switch, places, burst, touched, .. } = self;
        let mut give = |port: u16, chosen: Chosen| {
            let place = places[usize::from(port)].as_mut().expect("the switch knows its ports");
            if place.chosen.is_empty() {
                touched.push(port);
            }
            place.chosen.push(chosen);
        };
        let (mut frames, mut bytes) = (0, 0);
        // Frames of a flow follow each other: the next frames of this burst go where the first one
        // went. The switch would learn from the others only what it learnt from the first.
        let mut before = None;
        for (at, frame) in burst.frames().iter().enumerate() {
            if frame.is_dropped() {
                continue;
            }
            frames += 1;
            bytes += frame.len_bytes() as u64;
            let priority = frame.tci() & 0xf000;
            let chosen =
                |tag: u16| Chosen { at: at as u16, tci: if tag == 0 { 0 } else { priority | tag } };
            let way_bytes = frame.way_bytes();
            if let Some((same, port, tag)) = before
                && same == way_bytes
            {
                give(port, chosen(tag));
                continue;
            }
            match switch.admit(from, frame.addresses(), frame.vlan(), now_ns) {
                Ok((FrameRoute::One { port, tag }, _)) => {
                    before = Some((way_bytes, port, tag));
                    give(port, chosen(tag));
                }
                Ok((FrameRoute::All(flood), _)) => {
                    if let Err(reason) = switch.pay(flood, frame.len_bytes(), now_ns) {
                        counters.drops_in.count(reason);
                        continue;
                    }
                    let mut is_anywhere = false;
                    switch.each_receiver(flood, |port, tag| {
                        is_anywhere = true;
                        give(port, chosen(tag));
                    });
                    if !is_anywhere {
                        counters.drops_in.count(Reason::Nowhere);
                    }
                }
                Err(reason) => counters.drops_in.count(reason),
            }
        }
        counters.frames_in.add(frames);
        counters.bytes_in.add(bytes);
    }

    fn hand_out(&mut self, now_ns: u64) {
        while let Some(port) = self.touched.pop() {
            let place = self.places[usize::from(port)].as_mut().expect("it was just chosen");
            place.port.transmit(&self.burst, &place.chosen, now_ns);
            place.chosen.clear();
            place.dirty = true;
        }
    }

    /// Before the sidecore sleeps.
    pub fn arm(&mut self, wake: &mut Wake) -> Progress {
        let mut progress = Progress::Idle;
        for place in self.places.iter_mut().flatten() {
            progress |= place.port.arm(wake);
        }
        progress
    }

    /// After the sidecore slept.
    pub fn disarm(&mut self) {
        self.places.iter_mut().flatten().for_each(|place| place.port.disarm());
    }
}
