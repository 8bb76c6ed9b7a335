//! Clients of the simulation. Each has a range of its own, one request at a time, and knows what it
//! must read.

use member::{Answer, RangeContent};
use random::Random;
use replica::{ClientId, ClientRequest, Extent, RequestId};

use super::volume::SECTOR;

/// A client.
#[derive(Debug)]
pub(crate) struct SimClient {
    id: ClientId,
    first: u64,
    sectors: u64,
    /// By sector: the last write that was acknowledged, or was lost with an incarnation.
    known: Vec<Sector>,
    number: u64,
    pub(crate) incarnation: u64,
    pub(crate) waits: Option<(RequestId, SentRequest)>,
    pub(crate) ended: u64,
    flushed: Vec<u64>,
}

/// The content that a sector must have.
#[derive(Clone, Copy, Debug)]
enum Sector {
    /// This write's.
    Known(u64),
    /// One of these writes', between a flush and the last write: an incarnation ended.
    Between(u64, u64),
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub(crate) enum SentRequest {
    Write(Extent, u64),
    Zero(Extent, u64),
    Read(Extent),
    Flush(Vec<u64>),
}

impl SimClient {
    pub(crate) fn new(at: u16, first: u64, sectors: u64) -> Self {
        Self {
            id: ClientId { attachment: 77, channel: 0, slot: at },
            first,
            sectors,
            known: vec![Sector::Known(0); sectors as usize],
            number: 0,
            incarnation: 1,
            waits: None,
            ended: 0,
            flushed: vec![0; sectors as usize],
        }
    }

    /// The next request, if none is under way.
    pub(crate) fn next(&mut self, random: &mut Random) {
        if self.waits.is_some() {
            return;
        }
        self.number += 1;
        let at = random.below(self.sectors);
        let count = random.between(1, self.sectors - at) as u32;
        let extent = Extent::new(self.first + at, count).expect("it has sectors");
        let request = match random.below(8) {
            0 => SentRequest::Flush(self.known.iter().map(Sector::oldest).collect()),
            1 => SentRequest::Zero(extent, self.number),
            2 | 3 => SentRequest::Read(extent),
            _ => SentRequest::Write(extent, self.number),
        };
        let id = RequestId { client: self.id, number: self.number };
        self.waits = Some((id, request));
    }

    /// The request under way, to be sent once more.
    pub(crate) fn sent(&self) -> Option<(RequestId, ClientRequest<RangeContent>)> {
        let (id, request) = self.waits.as_ref()?;
        let request = match request {
            SentRequest::Write(extent, number) => {
                let sectors = extent.sectors() as usize;
                let content = self.sector_of(*number).repeat(sectors);
                ClientRequest::Write(*extent, RangeContent::of(content))
            }
            SentRequest::Zero(extent, _) => ClientRequest::Write(*extent, RangeContent::Discarded),
            SentRequest::Read(extent) => ClientRequest::Read(*extent),
            SentRequest::Flush(_) => ClientRequest::Flush,
        };
        Some((*id, request))
    }

    /// A sector as this write leaves it.
    fn sector_of(&self, number: u64) -> Vec<u8> {
        let word = [number.to_le_bytes(), u64::from(self.id.slot).to_le_bytes()].concat();
        word.repeat(SECTOR / 16)
    }

    fn place(&self, sector: u64) -> usize {
        (sector - self.first) as usize
    }

    /// The end of a request.
    pub(crate) fn answered(&mut self, answer: &Answer, zeroes: &[u64]) -> Result<(), String> {
        use Answer::{Done, Full, Invalid, Refused, Unreadable};
        let (Done(id, _) | Refused(id, _) | Full(id) | Invalid(id) | Unreadable(id)) = answer;
        if self.waits.as_ref().is_none_or(|(waits, _)| waits != id) {
            return Ok(());
        }
        match answer {
            Full(_) => return Err("a full table".to_owned()),
            Invalid(_) => return Err("a range that is not the volume's".to_owned()),
            Unreadable(_) => return Err("a range that no copy has".to_owned()),
            Refused(_, incarnation) => {
                self.incarnation = *incarnation;
                let (_, request) = self.waits.take().expect("it waits");
                self.lose(&request);
            }
            Done(_, content) => {
                let (_, request) = self.waits.take().expect("it waits");
                self.ended += 1;
                self.done(request, content.as_ref(), zeroes)?;
            }
        }
        Ok(())
    }

    fn done(
        &mut self,
        request: SentRequest,
        content: Option<&RangeContent>,
        zeroes: &[u64],
    ) -> Result<(), String> {
        match request {
            SentRequest::Write(extent, number) | SentRequest::Zero(extent, number) => {
                for sector in extent.first()..extent.end() {
                    let at = self.place(sector);
                    self.known[at] = Sector::Known(number);
                }
            }
            SentRequest::Flush(numbers) => self.flushed = numbers,
            SentRequest::Read(extent) => {
                let Some(RangeContent::Bytes(bytes)) = content else {
                    return Err("a read without content".to_owned());
                };
                for (sector, found) in (extent.first()..).zip(bytes.chunks(SECTOR)) {
                    self.check(sector, found, zeroes)?;
                }
            }
        }
        Ok(())
    }

    /// A sector must have its write's content. Afterwards it is known which write that is.
    fn check(&mut self, sector: u64, found: &[u8], zeroes: &[u64]) -> Result<(), String> {
        let at = self.place(sector);
        let number = u64::from_le_bytes(*found.first_chunk().expect("a sector"));
        let is_whole =
            number == 0 && found.iter().all(|byte| *byte == 0) || found == self.sector_of(number);
        let is_right = match self.known[at] {
            Sector::Known(wanted) if zeroes.contains(&wanted) || wanted == 0 => number == 0,
            Sector::Known(wanted) => number == wanted,
            Sector::Between(from, to) => number == 0 || (from..=to).contains(&number),
        };
        if !is_whole || !is_right {
            let (id, known) = (self.id.slot, self.known[at]);
            return Err(format!("client {id} read {number} at {sector}, and wants {known:?}"));
        }
        Ok(())
    }

    /// The incarnation has ended: each sector has the content of some write since the last flush.
    fn lose(&mut self, request: &SentRequest) {
        let number = self.number;
        let touches = |sector: u64| match request {
            SentRequest::Write(extent, _) | SentRequest::Zero(extent, _) => {
                (extent.first()..extent.end()).contains(&sector)
            }
            _ => false,
        };
        for (at, sector) in self.known.iter_mut().enumerate() {
            let newest = if touches(self.first + at as u64) { number } else { sector.newest() };
            *sector = Sector::Between(self.flushed[at].min(newest), newest);
        }
    }

    /// The numbers of writes of zeroes are the caller's to keep.
    pub(crate) fn zeroes(&self) -> Option<u64> {
        match self.waits {
            Some((_, SentRequest::Zero(_, number))) => Some(number),
            _ => None,
        }
    }
}

impl Sector {
    fn oldest(&self) -> u64 {
        match self {
            Self::Known(number) | Self::Between(number, _) => *number,
        }
    }

    fn newest(&self) -> u64 {
        match self {
            Self::Known(number) | Self::Between(_, number) => *number,
        }
    }
}
