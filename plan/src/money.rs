//! Prices in cents and shares as fractions: integers, so that a sum is right to the cent and the
//! same on each machine.

use std::fmt;

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize};

/// The highest price of one part, in dollars. With it, the most parts of a server and the most
/// servers, a total fits into 64 bits.
pub const PRICE_USD_MAX: u64 = 10_000_000;

/// The largest numerator and denominator of a share.
const PART_MAX: u64 = 1_000_000;

/// Cents of US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Cents(pub u64);

impl Cents {
    /// So many full dollars.
    pub const fn dollars(dollars: u64) -> Self {
        Self(dollars * 100)
    }
}

impl fmt::Display for Cents {
    /// As `$1,234`, and `$1,234.56` where there are cents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 % 100 {
            0 => format!("${}", grouped(self.0 / 100)),
            cents => format!("${}.{cents:02}", grouped(self.0 / 100)),
        };
        f.pad(&text)
    }
}

/// A number with a comma after each three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl<'de> Deserialize<'de> for Cents {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct PriceVisitor;
        impl Visitor<'_> for PriceVisitor {
            type Value = Cents;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a price in dollars from 0 to {PRICE_USD_MAX}, with two decimals at most")
            }

            fn visit_i64<E: serde::de::Error>(self, dollars: i64) -> Result<Cents, E> {
                match u64::try_from(dollars) {
                    Ok(dollars) if dollars <= PRICE_USD_MAX => Ok(Cents::dollars(dollars)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Signed(dollars), &self)),
                }
            }

            fn visit_f64<E: serde::de::Error>(self, dollars: f64) -> Result<Cents, E> {
                let cents = (dollars * 100.0).round();
                let is_whole = (dollars * 100.0 - cents).abs() < 1e-4;
                if !(0.0..=PRICE_USD_MAX as f64).contains(&dollars) || !is_whole {
                    return Err(E::invalid_value(serde::de::Unexpected::Float(dollars), &self));
                }
                Ok(Cents(cents as u64))
            }
        }
        source.deserialize_any(PriceVisitor)
    }
}

/// The price of a small unit, such as a kWh: dollars from 0 to 100, to the millionth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitPrice(u64);

impl UnitPrice {
    /// In millionths of a dollar.
    pub const fn millionths(self) -> u64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for UnitPrice {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let dollars = f64::deserialize(source)?;
        let millionths = (dollars * 1e6).round();
        if !(0.0..=100e6).contains(&millionths) || (dollars * 1e6 - millionths).abs() > 1e-4 {
            let range = "give 0 to 100 dollars, with six decimals at most";
            return Err(D::Error::custom(format!("{dollars} is out of range; {range}")));
        }
        Ok(Self(millionths as u64))
    }
}

/// A part of a whole, or a multiple of it: `"1/3"` or a number such as 0.57.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    part: u64,
    whole: u64,
}

impl Fraction {
    /// Nothing.
    pub const NONE: Self = Self { part: 0, whole: 1 };
    /// The whole.
    pub const ALL: Self = Self { part: 1, whole: 1 };

    /// `part` of `whole`; none if one of them is beyond a million, or `whole` is 0.
    pub const fn of(part: u64, whole: u64) -> Option<Self> {
        if part > PART_MAX || whole == 0 || whole > PART_MAX {
            return None;
        }
        Some(Self { part, whole })
    }

    /// This share of a number, rounded up: half a sidecore is a sidecore.
    pub fn up(self, of: u64) -> u64 {
        let product = u128::from(of) * u128::from(self.part);
        u64::try_from(product.div_ceil(u128::from(self.whole))).unwrap_or(u64::MAX)
    }

    /// This share of a number, rounded down.
    pub fn down(self, of: u64) -> u64 {
        let product = u128::from(of) * u128::from(self.part);
        u64::try_from(product / u128::from(self.whole)).unwrap_or(u64::MAX)
    }

    /// In parts of a million.
    pub fn ppm(self) -> u64 {
        self.part * 1_000_000 / self.whole
    }

    /// Whether it is no more than the whole.
    pub fn is_part(self) -> bool {
        self.part <= self.whole
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.part, self.whole))
    }
}

impl std::str::FromStr for Fraction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("'{text}' is no share: write \"1/3\" or 0.333");
        if let Some((part, whole)) = text.split_once('/') {
            let number = |text: &str| text.trim().parse::<u64>().map_err(|_| fault());
            return Self::of(number(part)?, number(whole)?).ok_or_else(fault);
        }
        from_number(text.trim().parse().map_err(|_| fault())?).ok_or_else(fault)
    }
}

/// A share of a decimal number, to the millionth.
fn from_number(number: f64) -> Option<Fraction> {
    let millionths = (number * 1e6).round();
    if !(0.0..=1e6).contains(&millionths) {
        return None;
    }
    Fraction::of(millionths as u64, 1_000_000)
}

/// A number, or a text such as `"1/3"`. `words` stand in the fault of a number.
fn written<'de, D: Deserializer<'de>>(
    source: D,
    from: impl Fn(f64) -> Option<Fraction>,
    words: &str,
) -> Result<Fraction, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
    }
    match Written::deserialize(source)? {
        Written::Number(number) => {
            from(number).ok_or_else(|| D::Error::custom(format!("{number} is no {words}")))
        }
        Written::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        written(source, from_number, "share from 0 to 1")
    }
}

/// A factor, which may be more than the whole: `"23/20"`, or a number from 0 to 100, to the
/// ten-thousandth.
pub(crate) fn factor<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Fraction>, D::Error> {
    let from = |number: f64| {
        let parts = (number * 1e4).round();
        let is_in = (0.0..=PART_MAX as f64).contains(&parts);
        Fraction::of(parts as u64, 10_000).filter(|_| is_in)
    };
    written(source, from, "factor from 0 to 100").map(Some)
}

/// The change from one sum to another in hundredths of a percent, rounded to the nearest; none
/// from nothing.
pub fn change(from: Cents, to: Cents) -> Option<i64> {
    if from.0 == 0 {
        return None;
    }
    let (from, to) = (i128::from(from.0), i128::from(to.0));
    let twice = 2 * (to - from) * 10_000;
    i64::try_from((twice + from * twice.signum()) / (2 * from)).ok()
}

/// Hundredths of a percent as `-10.0 %`.
pub fn percent(hundredths: i64) -> String {
    let tenths = (hundredths.abs() + 5) / 10;
    let sign = match hundredths.signum() {
        _ if tenths == 0 => "",
        -1 => "-",
        _ => "+",
    };
    format!("{sign}{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Priced {
        price: Cents,
    }

    #[test]
    fn prices_are_exact_and_hostile_ones_are_refused() {
        for (text, cents) in
            [("6407", 640_700), ("0.29", 29), ("1234.5", 123_450), ("1e3", 100_000)]
        {
            let read: Priced = toml::from_str(&format!("price = {text}")).unwrap();
            assert_eq!(read.price, Cents(cents), "{text}");
        }
        for text in ["-1", "nan", "inf", "1e300", "9223372036854775807", "0.001", "\"7\"", "-0.01"]
        {
            let refused = toml::from_str::<Priced>(&format!("price = {text}")).unwrap_err();
            assert!(refused.to_string().contains("a price in dollars"), "{refused}");
        }
        assert_eq!(Cents(123_456_789).to_string(), "$1,234,567.89");
        assert_eq!(Cents(100).to_string(), "$1");
    }

    #[test]
    fn shares_round_to_the_side_that_is_asked_for() {
        let third: Fraction = "1/3".parse().unwrap();
        assert_eq!((third.up(100), third.down(100), third.ppm()), (34, 33, 333_333));
        let decimal: Fraction = "0.57".parse().unwrap();
        assert_eq!(decimal.up(72), 42);
        assert_eq!(Fraction::of(1_000_000, 1).unwrap().up(u64::MAX), u64::MAX, "it saturates");
        for text in ["1/0", "-1/2", "2000001/1", "nan", "-0.5", "1.5", "x", "1/2/3", ""] {
            assert!(text.parse::<Fraction>().is_err(), "{text}");
        }
    }

    #[test]
    fn changes_are_rounded_once() {
        let of = |from, to| change(Cents::dollars(from), Cents::dollars(to));
        assert_eq!(of(133_395, 120_025), Some(-1002));
        assert_eq!(of(100, 100), Some(0));
        assert_eq!(of(0, 100), None);
        assert_eq!(percent(-1002), "-10.0 %");
        assert_eq!(percent(366), "+3.7 %");
        assert_eq!(percent(-4), "0.0 %");
    }
}
