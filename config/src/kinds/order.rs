//! The order in which objects of several kinds are added (after the objects that they need) and
//! removed (before them).

use super::Kind;

/// The kinds, each after those that it needs.
pub(crate) fn adding() -> Vec<Kind> {
    in_order(|kind, other| kind.row().needs().contains(&other.key()))
}

/// The kinds, each before those that it needs.
pub(crate) fn removing() -> Vec<Kind> {
    in_order(|kind, other| other.row().needs().contains(&kind.key()))
}

/// The kinds in the order of the table, but each after those that it `follows`.
fn in_order(follows: impl Fn(Kind, Kind) -> bool) -> Vec<Kind> {
    fn visit(kind: Kind, follows: &dyn Fn(Kind, Kind) -> bool, order: &mut Vec<Kind>) {
        if order.contains(&kind) {
            return;
        }
        for before in Kind::all().filter(|other| follows(kind, *other)) {
            visit(before, follows, order);
        }
        order.push(kind);
    }
    let mut order = Vec::new();
    Kind::all().for_each(|kind| visit(kind, &follows, &mut order));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_after_what_they_need_and_go_before_it() {
        let keys = |kinds: Vec<Kind>| kinds.into_iter().map(Kind::key).collect::<Vec<_>>();
        let (adding, removing) = (keys(adding()), keys(removing()));
        for kind in Kind::all() {
            for needed in kind.row().needs() {
                let at = |order: &[&str], key| order.iter().position(|it| *it == key).unwrap();
                assert!(at(&adding, *needed) < at(&adding, kind.key()), "{adding:?}");
                assert!(at(&removing, *needed) > at(&removing, kind.key()), "{removing:?}");
            }
        }
        assert_eq!(adding.len(), Kind::all().count());
    }
}
