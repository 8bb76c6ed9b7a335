//! Numbers as words: on axes rounded and with a prefix, in tables with all digits that count.

use results::{Dimension, Unit};

/// The prefixes of powers of thousand, from the largest.
const SI: [(f64, &str); 7] =
    [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")];
/// The units of time in nanoseconds, from the largest.
const TIME: [(f64, &str); 5] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"), (1e-3, "ps")];
const BINARY: [(f64, &str); 5] = [
    (1_099_511_627_776.0, "TiB"),
    (1_073_741_824.0, "GiB"),
    (1_048_576.0, "MiB"),
    (1024.0, "KiB"),
    (1.0, "B"),
];
/// The significant digits of an axis' labels.
const TICK_DIGITS: usize = 4;

/// The significant digits of an exact number. No measurement has more. Quotients such as rates and
/// means would have 17, which would be a quarter of a page's bytes.
const EXACT_DIGITS: usize = 9;

/// A number in full: the shortest decimal that reads back as the same number. Numbers with a
/// fraction are rounded to `EXACT_DIGITS`.
pub fn exact(number: f64) -> String {
    let short = || format!("{number:.*e}", EXACT_DIGITS - 1).parse().unwrap_or(number);
    let number: f64 = if number.fract() == 0.0 { number } else { short() };
    let size = number.abs();
    if size != 0.0 && !(1e-6..1e15).contains(&size) {
        return format!("{number:e}");
    }
    // The addition turns "-0" into "0".
    format!("{}", number + 0.0)
}

/// A place in a picture, rounded to a tenth of a unit and printed in short, `15` and not `15.0`. A
/// page of ten runs has forty thousand of them.
pub(super) fn place(at: f64) -> f64 {
    // The addition turns "-0" into "0".
    (at * 10.0).round() / 10.0 + 0.0
}

/// A number with at most `digits` significant digits, without zeros at its end.
pub fn rounded(number: f64, digits: usize) -> String {
    if number == 0.0 || !number.is_finite() {
        return exact(number);
    }
    let magnitude = number.abs().log10().floor() as i32;
    let decimals = (digits as i32 - 1 - magnitude).clamp(0, 12) as usize;
    let text = format!("{number:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number of `unit` in the form for an axis.
pub fn tick(number: f64, unit: Unit) -> String {
    let short = |number| rounded(number, TICK_DIGITS);
    if number == 0.0 {
        return if unit == Unit::Percent { "0 %".to_owned() } else { "0".to_owned() };
    }
    match unit.dimension() {
        Dimension::Time => prefixed(to(number, unit, Unit::Ns), &TIME, ""),
        // The longest frame of Ethernet is called 1500 B, and not 1.465 KiB.
        Dimension::Data if is_plain(to(number, unit, Unit::Bytes)) => {
            format!("{} B", short(to(number, unit, Unit::Bytes)))
        }
        Dimension::Data => prefixed(to(number, unit, Unit::Bytes), &BINARY, ""),
        Dimension::DataRate if unit == Unit::BitsPerS => prefixed(number, &SI, "bit/s"),
        Dimension::DataRate => prefixed(to(number, unit, Unit::BytesPerS), &SI, "B/s"),
        Dimension::Rate | Dimension::Count | Dimension::Money if number.abs() < 1000.0 => {
            short(number)
        }
        Dimension::Rate | Dimension::Count | Dimension::Money => {
            prefixed(number, &SI, "").trim_end().to_owned()
        }
        Dimension::Share if unit == Unit::Percent => format!("{} %", short(number)),
        Dimension::Share | Dimension::TimePerData | Dimension::Name => short(number),
    }
}

/// Whether a number of bytes is small and no whole number of KiB.
fn is_plain(bytes: f64) -> bool {
    const PLAIN_MAX: f64 = 9999.0;
    bytes % 1024.0 != 0.0 && bytes.abs() <= PLAIN_MAX
}

fn to(number: f64, from: Unit, to: Unit) -> f64 {
    from.convert(number, to).unwrap_or(number)
}

/// A number with the largest prefix of which it has at least one.
fn prefixed(number: f64, prefixes: &[(f64, &str)], unit: &str) -> String {
    // A number that is a thousandth smaller would be shown as 1000 of the next smaller unit.
    let fits = |(factor, _): &&(f64, &str)| number.abs() >= factor * 0.9995;
    let last = prefixes.last().expect("there are prefixes");
    let (factor, prefix) = prefixes.iter().find(fits).unwrap_or(last);
    format!("{} {prefix}{unit}", rounded(number / factor, TICK_DIGITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_numbers_read_back() {
        for number in [0.0, 1.0, 0.1, 1e-9, 6.02e23, -5.5, 12_345_678.5, 4_294_967_297.0] {
            assert_eq!(exact(number).parse::<f64>().unwrap(), number, "{}", exact(number));
        }
        for number in [1.0 / 3.0, -2e9 / 3.0, 2e-9 / 3.0, 123_456_789.125] {
            let error = exact(number).parse::<f64>().unwrap() / number - 1.0;
            assert!(error.abs() < 1e-8 && exact(number).len() < 16, "{}", exact(number));
        }
        assert_eq!(exact(-0.0), "0");
        assert_eq!(exact(1024.0), "1024");
    }

    #[test]
    fn ticks_have_prefixes() {
        for (number, unit, words) in [
            (0.0, Unit::Us, "0"),
            (0.0, Unit::Percent, "0 %"),
            (0.5, Unit::Us, "500 ns"),
            (1000.0, Unit::Us, "1 ms"),
            (1.5, Unit::S, "1.5 s"),
            (0.02, Unit::Ns, "20 ps"),
            (65536.0, Unit::Bytes, "64 KiB"),
            (3.0, Unit::Bytes, "3 B"),
            (1500.0, Unit::Bytes, "1500 B"),
            (1500.0, Unit::MbPerS, "1.5 GB/s"),
            (10e9, Unit::BitsPerS, "10 Gbit/s"),
            (250_000.0, Unit::PerS, "250 k"),
            (64.0, Unit::Count, "64"),
            (12.5, Unit::Percent, "12.5 %"),
            (1.25, Unit::Ratio, "1.25"),
            (-20.0, Unit::Percent, "-20 %"),
            (0.05, Unit::NsPerByte, "0.05"),
        ] {
            assert_eq!(tick(number, unit), words, "{number} {unit:?}");
        }
    }

    #[test]
    fn roundings_end_without_zeros() {
        assert_eq!(rounded(0.300_000_000_04, 4), "0.3");
        assert_eq!(rounded(1234.56, 4), "1235");
        assert_eq!(rounded(100.0, 4), "100");
    }
}
