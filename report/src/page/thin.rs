//! Fewer points of a long series, so that a page stays light. The visible points are kept.

use results::Point;

/// Points of one series on a page, and of all series of a plot. A time line of ten minutes has more
/// points, and many time lines over each other are unreadable with all of them.
const POINTS_SHOWN_MAX: usize = 400;
const ALL_SHOWN_MAX: usize = 2_000;
const POINTS_SHOWN_LEAST: usize = 100;

/// The number of points that each of so many series shows.
pub(super) fn points_shown(series: usize) -> usize {
    (ALL_SHOWN_MAX / series.max(1)).clamp(POINTS_SHOWN_LEAST, POINTS_SHOWN_MAX)
}

/// Keeps at most `most` of the points, unless more points have a name: the least and the most of
/// each stretch, both ends, and the points with a name.
pub(super) fn thin(points: &[Point], most: usize) -> Vec<Point> {
    if points.len() <= most {
        return points.to_vec();
    }
    let named = points.iter().filter(|point| point.label.is_some()).count();
    let stretches = (most.saturating_sub(named + 2) / 2).max(1);
    let length = points.len().div_ceil(stretches);
    let mut kept = vec![false; points.len()];
    for (nth, stretch) in points.chunks(length).enumerate() {
        let by_height =
            |one: &(usize, &Point), other: &(usize, &Point)| one.1.y.total_cmp(&other.1.y);
        let least = stretch.iter().enumerate().min_by(by_height);
        let most = stretch.iter().enumerate().max_by(by_height);
        for (at, _) in [least, most].into_iter().flatten() {
            kept[nth * length + at] = true;
        }
    }
    for (at, point) in points.iter().enumerate() {
        kept[at] |= at == 0 || at + 1 == points.len() || point.label.is_some();
    }
    points.iter().zip(kept).filter(|(_, kept)| *kept).map(|(point, _)| point.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_and_names_stay() {
        let mut points: Vec<Point> =
            (0..60_000).map(|at| Point::new(f64::from(at), f64::from(at % 7))).collect();
        points[31_234].y = 1000.0;
        points[40_001].label = Some("killed".to_owned());
        let few = thin(&points, POINTS_SHOWN_MAX);
        assert!(few.len() <= POINTS_SHOWN_MAX && few.len() > POINTS_SHOWN_MAX / 2, "{}", few.len());
        assert!(few.iter().any(|point| point.y == 1000.0));
        assert!(few.iter().any(|point| point.label.is_some()));
        assert_eq!((few[0].x, few[few.len() - 1].x), (0.0, 59_999.0));
        assert!(few.windows(2).all(|two| two[0].x < two[1].x));
        assert_eq!(thin(&points[..10], POINTS_SHOWN_MAX), points[..10]);
    }

    #[test]
    fn many_series_have_fewer_points_each() {
        assert_eq!([1, 5, 10, 40].map(points_shown), [400, 400, 200, 100]);
    }
}
