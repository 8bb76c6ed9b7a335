//! Logs: by `tracing`, to standard error, for people or as JSON. Never on a request's path.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The environment variable that says what to log, such as `info` or `block=debug,info`.
pub const LOG_VARIABLE: &str = "VRIO_LOG";

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
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
        LogFormat::Human => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if let Some(error) = wrong {
        tracing::warn!(%error, "{LOG_VARIABLE} is not understood; logging what \"info\" would");
    }
}
