//! An input as a list of steps.

use arbitrary::{Arbitrary, Unstructured};

/// Reads the steps that the rest of an input asks for, one after the other, at most `steps_max`.
pub(crate) fn steps<'a, S: Arbitrary<'a>>(
    input: &mut Unstructured<'a>,
    steps_max: usize,
) -> impl Iterator<Item = S> {
    let mut is_over = false;
    let step = move || {
        let step = (!is_over).then(|| S::arbitrary(input).ok()).flatten();
        is_over = input.is_empty();
        step
    };
    std::iter::from_fn(step).take(steps_max)
}
