//! The content of terminals of several sizes, and the effect of keys.

use expect_test::expect;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::top::view::tests::{status, view};

/// The text on a terminal of that size.
fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = (0..height).map(|y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        format!("{}\n", cells.collect::<String>().trim_end())
    });
    lines.collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> ScreenStep {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn a_wide_terminal_shows_everything() {
    expect![[r#"
        node vm1  vrio 0.1.0  pid 42  up 1h 0min

        SIDECORE   busy        load  awake  queues  core  rounds/s  wake-ups/s
        0         50.0%  #####.....  25.0%             1      250k          50

        DISK   state    IOPS   read/s  write/s     p50    p99  errors  volume
        alice  running   15k  58.6MiB  14.6MiB  36.7us  1.9ms       3  io1/alice-root
        bob    lost      0.0       0B       0B       -      -       3  io1/bob-root
          bob: io1 at 10.0.0.9:4870 does not answer

        VOLUME   IOPS  read/s  write/s     p50     p99  errors  in use by
        scratch   5.0   20KiB       0B  35.0us  50.0us       0  carol

        SESSION  core  state         rtt  window  in flight  packets/s  loss  resent  address
        io1         0  connected  45.2us    1MiB      64KiB       4100  1.0%      80  10.0.0.9:4870




        q quits, arrows and Page Up/Down scroll
    "#]]
    .assert_eq(&drawn(&mut Screen::new(view()), 96, 20));
}

#[test]
fn a_narrow_terminal_leaves_columns_out() {
    expect![[r#"
        node vm1  vrio 0.1.0  pid 42  up 1h 0min

        SIDECORE   busy  awake  queues  rounds/s
        0         50.0%  25.0%              250k

        DISK   state    IOPS     p50    p99
        alice  running   15k  36.7us  1.9ms
        bob    lost      0.0       -      -
          bob: io1 at 10.0.0.9:4870 does not ans

        VOLUME   IOPS  read/s     p50     p99
        scratch   5.0   20KiB  35.0us  50.0us

        SESSION  state         rtt  loss  resent
        io1      connected  45.2us  1.0%      80


        q quits, arrows and Page Up/Down scroll
    "#]]
    .assert_eq(&drawn(&mut Screen::new(view()), 40, 18));
}

#[test]
fn a_tiny_terminal_is_no_panic() {
    for (width, height) in [(1, 1), (1, 40), (200, 1), (3, 3)] {
        let text = drawn(&mut Screen::new(view()), width, height);
        assert_eq!(text.lines().count(), usize::from(height));
    }
}

#[test]
fn a_short_terminal_scrolls_and_stops_at_both_ends() {
    let mut screen = Screen::new(view());
    let first = drawn(&mut screen, 80, 6);
    assert!(first.starts_with("node vm1"), "{first}");
    assert!(first.contains("more lines below"), "{first}");
    press(&mut screen, KeyCode::Up);
    assert_eq!(drawn(&mut screen, 80, 6), first);
    press(&mut screen, KeyCode::PageDown);
    let second = drawn(&mut screen, 80, 6);
    assert!(!second.contains("node vm1"), "{second}");
    for _ in 0..100 {
        press(&mut screen, KeyCode::Down);
    }
    let last = drawn(&mut screen, 80, 6);
    assert!(last.contains("SESSION") && !last.contains("below"), "{last}");
    press(&mut screen, KeyCode::Home);
    assert_eq!(drawn(&mut screen, 80, 6), first);
    press(&mut screen, KeyCode::End);
    assert_eq!(drawn(&mut screen, 80, 6), last);
    // A status with fewer lines than the one before.
    screen.show(NodeView::new(None, &node::status::Status::default()));
    assert!(drawn(&mut screen, 80, 6).starts_with("node"), "{last}");
}

#[test]
fn a_node_that_does_not_answer_leaves_what_was_seen() {
    let mut screen = Screen::new(view());
    screen.problem = Some("no node answers".to_owned());
    let text = drawn(&mut screen, 60, 20);
    assert!(text.contains("alice") && text.ends_with("no node answers\n"), "{text}");
    screen.show(NodeView::new(None, &status(3)));
    assert!(!drawn(&mut screen, 60, 20).contains("no node answers"));
}

#[test]
fn keys_end_it() {
    let mut screen = Screen::new(view());
    assert_eq!(press(&mut screen, KeyCode::Char('q')), ScreenStep::Quit);
    assert_eq!(press(&mut screen, KeyCode::Esc), ScreenStep::Quit);
    assert_eq!(press(&mut screen, KeyCode::Char('x')), ScreenStep::Go);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.key(control_c), ScreenStep::Quit);
}
