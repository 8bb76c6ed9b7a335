//! Sizes and durations as people write them: "20GiB", "4096", "30s", "1min".

/// Units of size. Binary and decimal ones differ by up to a tenth, so a bare "G" is refused.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Units of time, in nanoseconds.
const TIME_UNITS: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reads a size such as "20GiB", in bytes.
///
/// # Errors
/// Says what is wrong with the text and how a size is written.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    quantity(text, &SIZE_UNITS).map_err(|why| {
        format!(
            "{text:?} is not a size ({why}); write for instance \"20GiB\", \"512MiB\" or \"10GB\""
        )
    })
}

/// Reads a duration such as "30s", in nanoseconds.
///
/// # Errors
/// Says what is wrong with the text and how a duration is written.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    quantity(text, &TIME_UNITS).map_err(|why| {
        format!(
            "{text:?} is not a duration ({why}); write for instance \"500ms\", \"30s\" or \"5min\""
        )
    })
}

/// Writes a duration with the largest unit that divides it, as `duration_ns` reads it.
pub fn show_duration(ns: u64) -> String {
    let unit = TIME_UNITS.iter().rev().find(|(_, scale)| ns >= *scale && ns.is_multiple_of(*scale));
    unit.map_or_else(|| format!("{ns}ns"), |(name, scale)| format!("{}{name}", ns / scale))
}

fn quantity(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    if number.is_empty() {
        return Err("it does not start with a number".to_owned());
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        return Err(if unit.is_empty() {
            format!("it has no unit; the units are {}", names.join(", "))
        } else {
            format!("{unit:?} is no unit; the units are {}", names.join(", "))
        });
    };
    let number: u64 = number.parse().map_err(|_| "the number is too big".to_owned())?;
    number.checked_mul(*scale).ok_or_else(|| "the number is too big".to_owned())
}

#[cfg(test)]
mod tests {
    use volume::settings::show_size;

    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0B", 0),
            ("512B", 512),
            ("4KiB", 4096),
            ("20GiB", 20 << 30),
            ("20 GiB", 20 << 30),
            ("10GB", 10_000_000_000),
            ("3TiB", 3 << 40),
        ] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn odd_sizes_are_refused_with_a_reason() {
        for (text, why) in [
            ("", "does not start with a number"),
            ("GiB", "does not start with a number"),
            ("-1GiB", "does not start with a number"),
            ("20", "no unit"),
            ("20G", "\"G\" is no unit"),
            ("1.5GiB", "\".5GiB\" is no unit"),
            ("99999999999999999999B", "too big"),
            ("99999999TiB", "too big"),
        ] {
            let error = size_bytes(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn durations_are_read_and_shown_alike() {
        for (text, ns) in
            [("500ms", 500_000_000), ("30s", 30_000_000_000), ("5min", 300_000_000_000)]
        {
            assert_eq!(duration_ns(text), Ok(ns));
            assert_eq!(show_duration(ns), text);
        }
        assert!(duration_ns("30").is_err());
        assert!(duration_ns("30 years").is_err());
        assert_eq!(show_duration(7), "7ns");
    }

    #[test]
    fn sizes_are_shown_short() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1536, "1.5KiB"),
            (20 << 30, "20GiB"),
            ((20 << 30) + 1, "20.0GiB"),
            (u64::MAX, "16777215.9TiB"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }
}
