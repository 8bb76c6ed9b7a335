//! The history of a volume of a pool, as it is configured.

use std::fmt;

use store::HistoryOptions;

use crate::settings::Settings;

/// The step of a history of which none is written.
const STEP_MS: u64 = 1_000;

/// The history of a volume; none at all is a choice as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeHistory(pub Option<HistoryOptions>);

impl VolumeHistory {
    /// A history that reaches so far back, with moments so close.
    ///
    /// # Errors
    /// The fault of the history, and the way out.
    pub fn new(reach_ns: u64, step_ns: Option<u64>) -> Result<Self, String> {
        let step_ms = step_ns.map_or(STEP_MS, |step_ns| step_ns / 1_000_000);
        let options = HistoryOptions { reach_ms: reach_ns / 1_000_000, step_ms };
        options.check().map(|()| Self(Some(options)))
    }

    /// The keys `history` and `history-step`, if they are written.
    pub(super) fn read(settings: &dyn Settings) -> Option<Option<Self>> {
        let step_ns = match settings.has("history-step") {
            true => Some(settings.duration_ns("history-step")?),
            false => None,
        };
        if !settings.has("history") {
            if step_ns.is_some() {
                let text = "\"history-step\": there is no \"history\" beside it; write for \
                            instance history = \"2h\"";
                settings.fail_key("history-step", text.to_owned());
                return None;
            }
            return Some(None);
        }
        if settings.text("history")? == "none" {
            return Some(Some(Self(None)));
        }
        match Self::new(settings.duration_ns("history")?, step_ns) {
            Ok(history) => Some(Some(history)),
            Err(text) => {
                settings.fail_key("history", format!("\"history\": {text}"));
                None
            }
        }
    }
}

impl fmt::Display for VolumeHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(HistoryOptions { reach_ms, step_ms }) = self.0 else { return f.write_str("none") };
        write!(f, "{} with a step of {}", Span(reach_ms), Span(step_ms))
    }
}

/// Milliseconds with the largest unit that divides them.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)];
        let unit = units.into_iter().find(|(_, ms)| self.0 >= *ms && self.0.is_multiple_of(*ms));
        let (name, ms) = unit.unwrap_or(("ms", 1));
        write!(f, "{}{name}", self.0 / ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_shown_as_it_is_written() {
        let history =
            |reach_ns, step_ns| VolumeHistory::new(reach_ns, step_ns).map(|it| it.to_string());
        let hour_ns = 3_600_000_000_000;
        assert_eq!(history(2 * hour_ns, None).as_deref(), Ok("2h with a step of 1s"));
        assert_eq!(
            history(hour_ns / 40, Some(200_000_000)).as_deref(),
            Ok("90s with a step of 200ms")
        );
        assert_eq!(VolumeHistory(None).to_string(), "none");
        let error = history(48 * hour_ns, None).unwrap_err();
        assert!(error.contains("make its step longer (2160 ms"), "{error}");
        assert!(history(hour_ns, Some(99_000_000)).is_err());
        assert!(history(1, None).is_err());
    }
}
