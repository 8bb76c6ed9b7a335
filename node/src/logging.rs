//! Logs: by `tracing`, to standard error, for people, for systemd's journal, or as JSON. Never on a
//! request's path.

use std::fmt;
use std::io::IsTerminal;

use rustix::fs::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The environment variable that says what to log, such as `info` or `block=debug,info`.
pub const LOG_VARIABLE: &str = "VRIO_LOG";

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people; where the journal reads the lines, with priorities and without a time.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// Lines as the journal takes them: it has a time of its own, and reads a line's priority at its
/// beginning (sd-daemon(3)).
struct ForJournal(Format<Full, ()>);

impl ForJournal {
    fn new() -> Self {
        let format = tracing_subscriber::fmt::format().with_target(false).with_ansi(false);
        Self(format.with_level(false).without_time())
    }
}

impl<S, N> FormatEvent<S, N> for ForJournal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// As syslog(3) has them.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Whether the journal reads standard error: a service manager says which file that is, since the
/// variable goes on to programs whose output goes elsewhere (systemd.exec(5), `JOURNAL_STREAM`).
fn journal_reads() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(std::io::stderr()).is_ok_and(|it| stream == format!("{}:{}", it.st_dev, it.st_ino))
}

/// Starts logging, once per process; a second call changes nothing.
pub fn start(format: LogFormat) {
    let filter = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| "info".to_owned());
    let (filter, wrong) = match EnvFilter::try_new(&filter) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let colours = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let builder = builder.with_ansi(colours);
    // Only fails when there is one already.
    let _ = match format {
        LogFormat::Human if journal_reads() => builder.event_format(ForJournal::new()).try_init(),
        LogFormat::Human => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Some(error) = wrong {
        tracing::warn!(%error, "{LOG_VARIABLE} is not understood; logging as with \"info\"");
    }
}
