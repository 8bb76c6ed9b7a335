//! The processes of a node's agent: whichever of them are killed, there is one agent again, as long
//! as the starter or its stand-by is there.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::nodes::Node;

use crate::clusters::part_of;
use crate::placements::{start, wait_for_nodes};
use crate::pools::told;
use crate::replicas::{PATIENCE, Rack};

/// The processes of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Starter,
    StandBy,
    Agent,
}

/// The processes of the agent of a node with this configuration.
fn processes(config: &Path) -> Vec<(Part, Pid)> {
    let config = config.as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let part = |process: std::fs::DirEntry| {
        let pid = Pid::from_raw(process.file_name().to_str()?.parse().ok()?)?;
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        let has = |word: &[u8]| words.contains(&word);
        if !has(b"agent") || !has(config) {
            return None;
        }
        let starter = words.iter().position(|word| *word == b"--starter");
        let starter = starter.and_then(|at| std::str::from_utf8(words[at + 1]).ok()?.parse().ok());
        let status = std::fs::read_to_string(process.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        let has_starter = starter == parent.trim().parse::<u32>().ok();
        Some(match (has(b"--work"), has(b"--stand-by") && has_starter) {
            (true, _) => (Part::Agent, pid),
            (false, true) => (Part::StandBy, pid),
            // Also a stand-by without its starter.
            (false, false) => (Part::Starter, pid),
        })
    };
    all.filter_map(part).collect()
}

fn kill(config: &Path, parts: &[Part]) {
    let all = processes(config);
    let killed: Vec<_> =
        all.into_iter().filter(|(part, _)| parts.contains(part)).map(|(_, pid)| pid).collect();
    for pid in &killed {
        // An agent ends with its starter.
        let _ = kill_process(*pid, Signal::KILL);
    }
    let until = Instant::now() + PATIENCE;
    while processes(config).iter().any(|(_, pid)| killed.contains(pid)) {
        assert!(Instant::now() < until, "{killed:?} do not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the node has one of each process, and so many agents were there before.
fn wait_for_agent(node: &Node, config: &Path, restarts: u64) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let part = part_of(node);
        let all = processes(config);
        let count = |wanted| all.iter().filter(|(part, _)| *part == wanted).count();
        if part["state"] == "present"
            && part["agent_restarts"].as_u64().unwrap_or_default() == restarts
            && [Part::Starter, Part::StandBy, Part::Agent].map(count) == [1; 3]
        {
            return part;
        }
        assert!(Instant::now() < until, "{all:?} {part:#}\n{}", node.log_tail());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn an_agent_is_started_again_also_when_its_starter_is_killed_with_it() {
    let rack = Rack::new(17);
    let io1 = start(&rack, "io1");
    wait_for_nodes(&rack, 1);
    let config = io1.plan().home.join("node.toml");
    let mut last = wait_for_agent(&io1, &config, 0);
    assert_eq!(last["agent_restarts"], Value::Null, "{last:#}");
    let killed: [(&[Part], u64); 5] = [
        (&[Part::Agent], 1),
        (&[Part::Starter, Part::Agent], 1),
        (&[Part::StandBy], 0),
        (&[Part::Starter], 1),
        (&[Part::Starter, Part::Agent], 1),
    ];
    let mut restarts = 0;
    for (parts, more) in killed {
        kill(&config, parts);
        restarts += more;
        let next = wait_for_agent(&io1, &config, restarts);
        assert_eq!(next["agent_pid"] != last["agent_pid"], more > 0, "{parts:?}: {next:#}");
        last = next;
    }
    let status = told(&io1, "status");
    assert!(status.contains("its agent was started again 4 times"), "{status}");
    // Without all of them nothing can start one, and the status says what to do.
    kill(&config, &[Part::Starter, Part::StandBy, Part::Agent]);
    let until = Instant::now() + PATIENCE;
    while !told(&io1, "status").contains("Restart the node") {
        assert!(Instant::now() < until, "{}", told(&io1, "status"));
        std::thread::sleep(Duration::from_millis(100));
    }
    let io1 = io1.kill().expect("it ran until now").start().expect("it starts again");
    wait_for_agent(&io1, &config, 0);
    io1.stop().expect("it stops in order");
    let until = Instant::now() + PATIENCE;
    while !processes(&config).is_empty() {
        assert!(Instant::now() < until, "{:?}", processes(&config));
        std::thread::sleep(Duration::from_millis(100));
    }
}
