//! The profile of an application: its computation, and its messages by pattern and size.

use serde::{Deserialize, Serialize};

use super::curve::BYTES_MAX;
use super::platform::CLOCK_MHZ_MAX;
use crate::fault::{NAME_MAX, PlanFault, key, named, within};
use crate::money::Fraction;

/// Ranks of an application.
pub const RANKS_MAX: u64 = 1 << 17;
/// Calls of one rank: a thousand a second for a year.
const COUNT_MAX: f64 = 4e10;
/// Messages that a rank has under way.
const WINDOW_MAX: u64 = 1 << 16;
/// Rows of messages: enough for a recording with a row for each pattern, size and communicator.
const ROWS_MAX: u64 = 4096;
/// The longest run: a year.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

/// Which ranks send to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// From one rank to another rank.
    PointToPoint,
    /// A sum of all ranks' data for all ranks.
    Allreduce,
    /// From each rank to each rank, data of their own.
    Alltoall,
    /// From each rank to each rank, the same data.
    Allgather,
    /// From one rank to all ranks.
    Bcast,
    /// A sum of all ranks' data for one rank.
    Reduce,
    /// All ranks wait for one another.
    Barrier,
}

impl Pattern {
    /// Its name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PointToPoint => "point-to-point",
            Self::Allreduce => "allreduce",
            Self::Alltoall => "alltoall",
            Self::Allgather => "allgather",
            Self::Bcast => "bcast",
            Self::Reduce => "reduce",
            Self::Barrier => "barrier",
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessagesForm {
    pattern: Pattern,
    #[serde(default)]
    bytes: u64,
    count: f64,
    window: Option<u64>,
    local: Option<Fraction>,
    ranks: Option<u64>,
    ranks_per_host: Option<u64>,
}

/// `PROFILE.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileForm {
    title: String,
    ranks: u64,
    ranks_per_host: u64,
    processor_mhz: Option<u64>,
    computation_s: f64,
    computation_mean_s: Option<f64>,
    #[serde(default)]
    other_s: f64,
    recorded_s: Option<f64>,
    recorded_on: Option<String>,
    #[serde(default)]
    messages: Vec<MessagesForm>,
}

/// Messages of one pattern and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileMessages {
    /// Their pattern.
    pub pattern: Pattern,
    /// Bytes of a message: of `alltoall` for each other rank, of `allgather` from each.
    pub bytes: u64,
    /// Thousandths of a call, of a rank on average.
    pub count_milli: u64,
    /// Messages from one rank to other ranks that are under way at once.
    pub window: u64,
    /// The share of messages from one rank to other ranks that stays within a host.
    pub local: Fraction,
    /// Ranks that take part.
    pub ranks: u64,
    /// The most of them on a host, if the profile has it; else they follow one another.
    pub per_host: Option<u64>,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its title.
    pub title: String,
    /// Ranks.
    pub ranks: u64,
    /// Ranks of a host; they follow one another.
    pub ranks_per_host: u64,
    /// The clock of the processors of which the computation is.
    pub processor_mhz: Option<u64>,
    /// The computation of the rank that has most, and of a rank on average.
    pub computation_ns: [u64; 2],
    /// Time that no platform changes: files, calls of MPI that have no pattern here.
    pub other_ns: u64,
    /// The run time when the profile was recorded, and the name of its platform.
    pub recorded: Option<(u64, Option<String>)>,
    /// Its messages.
    pub messages: Vec<ProfileMessages>,
}

/// Seconds as nanoseconds.
fn nanoseconds(at: &str, seconds: f64) -> Result<u64, PlanFault> {
    if (0.0..=SECONDS_MAX).contains(&seconds) {
        return Ok((seconds * 1e9).round() as u64);
    }
    let way_out = format!("give 0 to {SECONDS_MAX} seconds");
    Err(key(at, format!("{seconds} is out of range"), way_out))
}

impl Profile {
    /// Reads and checks a file. `name` is the file's in faults.
    ///
    /// # Errors
    /// When the text is not of this form, or a value cannot be used.
    pub fn read(name: &str, text: &str) -> Result<Self, PlanFault> {
        let form: ProfileForm = toml::from_str(text).map_err(|error| PlanFault::Form {
            file: name.to_owned(),
            cause: error.to_string().trim_end().to_owned(),
            example: "vrio plan example profile",
        })?;
        named("title", &form.title, NAME_MAX)?;
        if let Some(words) = &form.recorded_on {
            named("recorded_on", words, NAME_MAX)?;
        }
        within("ranks", form.ranks, 1, RANKS_MAX)?;
        within("ranks_per_host", form.ranks_per_host, 1, form.ranks)?;
        if let Some(mhz) = form.processor_mhz {
            within("processor_mhz", mhz, 1, CLOCK_MHZ_MAX)?;
        }
        within("the number of [[messages]]", form.messages.len() as u64, 0, ROWS_MAX)?;
        let most_ns = nanoseconds("computation_s", form.computation_s)?;
        let mean_s = form.computation_mean_s.unwrap_or(form.computation_s);
        let mean_ns = nanoseconds("computation_mean_s", mean_s)?;
        if mean_ns > most_ns {
            let cause = "it is more than computation_s, which is that of the slowest rank";
            return Err(key("computation_mean_s", cause, "give the mean of all ranks"));
        }
        let recorded_ns = form.recorded_s.map(|it| nanoseconds("recorded_s", it)).transpose()?;
        let (ranks, per_host) = (form.ranks, form.ranks_per_host);
        let rows = form.messages.into_iter().enumerate();
        let rows = rows.map(|(at, row)| row.messages(&format!("messages[{at}]"), ranks, per_host));
        Ok(Self {
            title: form.title,
            ranks,
            ranks_per_host: per_host,
            processor_mhz: form.processor_mhz,
            computation_ns: [most_ns, mean_ns],
            other_ns: nanoseconds("other_s", form.other_s)?,
            recorded: recorded_ns.map(|ns| (ns, form.recorded_on)),
            messages: rows.collect::<Result<_, _>>()?,
        })
    }
}

impl MessagesForm {
    fn messages(self, at: &str, ranks: u64, per_host: u64) -> Result<ProfileMessages, PlanFault> {
        within(&format!("{at}.bytes"), self.bytes, 0, BYTES_MAX)?;
        let taking_part = self.ranks.unwrap_or(ranks);
        within(&format!("{at}.ranks"), taking_part, 1, ranks)?;
        let window = self.window.unwrap_or(1);
        within(&format!("{at}.window"), window, 1, WINDOW_MAX)?;
        if !(0.0..=COUNT_MAX).contains(&self.count) {
            let cause = format!("{} is out of range", self.count);
            return Err(key(format!("{at}.count"), cause, format!("give 0 to {COUNT_MAX}")));
        }
        let is_pair = self.pattern == Pattern::PointToPoint;
        if !is_pair && (self.local.is_some() || self.window.is_some()) {
            let cause = format!("{} has no window and no local", self.pattern.name());
            return Err(key(at, cause, "give them for point-to-point alone"));
        }
        if self.pattern == Pattern::Barrier && self.bytes != 0 {
            return Err(key(at, "a barrier has no bytes", "leave them out"));
        }
        if per_host == 1 && self.local.is_some_and(|local| local.ppm() > 0) {
            let cause = "with ranks_per_host = 1 no message stays on a host";
            return Err(key(format!("{at}.local"), cause, "leave it out, as with other numbers"));
        }
        if is_pair && self.ranks_per_host.is_some() {
            let cause = "point-to-point has no ranks_per_host";
            return Err(key(at, cause, "give local, the share that stays on a host"));
        }
        if let Some(most) = self.ranks_per_host {
            let at = format!("{at}.ranks_per_host");
            within(&at, most, 1, per_host.min(taking_part))?;
            let (wanted, hosts) = (taking_part.div_ceil(most), ranks.div_ceil(per_host));
            if wanted > hosts {
                let cause = format!("its ranks need {wanted} hosts, and there are {hosts}");
                return Err(key(
                    at,
                    cause,
                    "leave it out, or give the most of its ranks on a host",
                ));
            }
        }
        // Without another word the receiver is any other rank.
        let (near, others) = (per_host.min(taking_part) - 1, (taking_part - 1).max(1));
        let local = self.local.or_else(|| Fraction::of(near, others)).unwrap_or(Fraction::NONE);
        if !local.is_part() {
            return Err(key(format!("{at}.local"), "it is more than all", "give 0 to 1"));
        }
        Ok(ProfileMessages {
            pattern: self.pattern,
            bytes: self.bytes,
            count_milli: (self.count * 1000.0).round() as u64,
            window,
            local,
            ranks: taking_part,
            per_host: self.ranks_per_host,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "title = \"t\"\nranks = 8\nranks_per_host = 4\ncomputation_s = 2\n";

    fn with(text: &str) -> Result<Profile, String> {
        Profile::read("p", &format!("{BARE}{text}")).map_err(|fault| fault.to_string())
    }

    #[test]
    fn profiles_have_their_defaults() {
        let row = "[[messages]]\npattern = \"point-to-point\"\nbytes = 8\ncount = 0.5";
        let profile = with(row).unwrap();
        let messages = profile.messages[0];
        assert_eq!((messages.count_milli, messages.window, messages.ranks), (500, 1, 8));
        assert_eq!(messages.local.to_string(), "3/7", "three of the seven others are near");
        assert_eq!(profile.computation_ns, [2_000_000_000; 2]);
        // A count is of elements: a message may have more bytes than a count can say.
        let large = with(&row.replace("bytes = 8", "bytes = 3221225472"));
        assert_eq!(large.unwrap().messages[0].bytes, 3 << 30);
        // Two ranks of a host are one another's only neighbours.
        assert_eq!(
            with(&format!("{row}\nranks = 2")).unwrap().messages[0].local.to_string(),
            "1/1"
        );
        assert!(Profile::read("example", super::super::EXAMPLE).is_ok());
    }

    #[test]
    fn profiles_without_use_are_refused() {
        let row = |text: &str| format!("[[messages]]\npattern = \"alltoall\"\n{text}");
        for (text, at) in [
            ("computation_mean_s = 3".to_owned(), "computation_mean_s: it is more"),
            ("other_s = nan".to_owned(), "other_s"),
            ("recorded_s = -1".to_owned(), "recorded_s"),
            ("recorded_on = \"a\\nb\"".to_owned(), "recorded_on: it has a control"),
            ("processor_mhz = 0".to_owned(), "processor_mhz"),
            (row("count = inf"), "messages[0].count"),
            (row("count = 1\nbytes = 1099511627777"), "messages[0].bytes"),
            (row("count = 1\nranks = 9"), "messages[0].ranks"),
            (row("count = 1\nwindow = 2"), "alltoall has no window"),
            (row("count = 1\nranks_per_host = 5"), "messages[0].ranks_per_host: 5"),
            (row("count = 1\nranks_per_host = 3"), "its ranks need 3 hosts, and there are 2"),
            (
                row("count = 1\nranks_per_host = 2").replace("alltoall", "point-to-point"),
                "no ranks_",
            ),
            (row("count = 1\nsize = 2"), "vrio plan example profile"),
            (row("count = 1\nbytes = 1").replace("alltoall", "barrier"), "a barrier has no bytes"),
            (row("count = 1\nlocal = \"3/2\"").replace("alltoall", "point-to-point"), "local"),
            (row("count = 1\nwindow = 0").replace("alltoall", "point-to-point"), "window"),
            (row("count = 1").repeat(5000), "the number of [[messages]]"),
        ] {
            let fault = with(&text.replace("count = 1[[", "count = 1\n[[")).unwrap_err();
            assert!(fault.contains(at), "{at}: {fault}");
        }
        let pair = "pattern = \"point-to-point\", bytes = 8, count = 1, local = \"1/2\"";
        let alone = format!("ranks_per_host = 1\nmessages = [{{ {pair} }}]");
        for (old, new, at) in [
            ("ranks = 8", "ranks = 0", "ranks: 0"),
            ("ranks_per_host = 4", "ranks_per_host = 9", "ranks_per_host"),
            ("computation_s = 2", "computation_s = 1e300", "computation_s"),
            ("ranks_per_host = 4", &alone, "messages[0].local: with ranks_per_host = 1"),
        ] {
            let fault = Profile::read("p", &BARE.replace(old, new)).unwrap_err().to_string();
            assert!(fault.contains(at), "{at}: {fault}");
        }
    }
}
