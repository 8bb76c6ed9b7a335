//! The guide of docs/cluster.md from three empty hosts to a cluster: each command as it is written,
//! on three hosts with a network, files and users of their own.
//!
//! Stand-ins are there for programs that are not the guide's subject: `systemctl` starts what the
//! unit says, as the unit's user; `ssh` and `scp` enter another host; `apt-get` does nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const TEST: &str = "the_guide_leads_from_three_empty_hosts_to_a_cluster";

/// How long a state may take that comes by itself; only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

/// Makes a host: a copy of this system's settings, and nothing of what it has kept or runs.
const HOST: &str = r#"set -e
cp -a /etc "$1/etc" && mount --bind "$1/etc" /etc
for user in vrio:64870 etcd:64871; do
    name=${user%:*} number=${user#*:}
    grep -q "^$name:" /etc/passwd && continue
    echo "$name:x:$number:$number::/nonexistent:/usr/sbin/nologin" >>/etc/passwd
    echo "$name:x:$number:" >>/etc/group
done
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
mkdir -p /etc/systemd/system
rm -rf /etc/vrio
install -d -g vrio -m 750 /etc/vrio
install -d -o vrio -g vrio -m 700 /var/lib/vrio
install -d -o vrio -g vrio -m 750 /run/vrio
ip link set lo up
: >"$1/ready"
exec sleep infinity
"#;

const SYSTEMCTL: &str = r#"#!/bin/sh -e
for unit; do :; done
case "$1 $unit" in
disable*) ;;
*vrio-etcd)
    file=/etc/systemd/system/vrio-etcd.service
    value() { sed -n "s/^$1=//p" $file; }
    cd "$(value WorkingDirectory)"
    # On a busy machine a member does not run for etcd's second, and each election is a refused
    # request.
    printf 'heartbeat-interval: 300\nelection-timeout: 3000\n' >>etcd.yml
    setsid setpriv --reuid "$(value User)" --regid "$(value Group)" --clear-groups \
        $(value ExecStart) >/run/etcd.log 2>&1 </dev/null &
    ;;
*vrio-node@*)
    name=${unit#vrio-node@}
    cd /
    setsid setpriv --reuid vrio --regid vrio --clear-groups \
        vrio node --config "/etc/vrio/$name.toml" >"/run/$name.log" 2>&1 </dev/null &
    ;;
*) echo "there is no unit $unit" >&2; exit 1 ;;
esac
"#;

const SSH: &str = r#"#!/bin/sh -e
pid=$(cat "$GUIDE/pid-$1"); shift
exec nsenter -t "$pid" -m -n -- "$@"
"#;

const SCP: &str = r#"#!/bin/sh -e
staged=$GUIDE/staged.$$
cp -r "$2" "$staged"
ssh "${3%%:*}" cp -r "$staged" "${3#*:}"
"#;

/// A process in namespaces of its own, and all that are started in them.
struct Space {
    holder: Child,
    /// The target of `/proc/PID/ns/net` of all its processes.
    net: PathBuf,
}

impl Space {
    fn start(words: &[&str]) -> Option<Self> {
        let mut command = Command::new("unshare");
        command.args(words).stdin(Stdio::null());
        let holder = command.spawn().ok()?;
        let own = fs::read_link("/proc/self/ns/net").ok()?;
        let until = Instant::now() + PATIENCE;
        // Until the process has left the namespace of this test.
        while Instant::now() < until {
            match fs::read_link(format!("/proc/{}/ns/net", holder.id())) {
                Ok(net) if net != own => return Some(Self { holder, net }),
                Ok(_) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => break,
            }
        }
        None
    }

    fn pid(&self) -> String {
        self.holder.id().to_string()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in all
            .filter(|it| fs::read_link(it.path().join("ns/net")).ok().as_ref() == Some(&self.net))
        {
            let pid = process.file_name().into_string().ok().and_then(|it| it.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Three hosts on one switch.
struct Hosts {
    home: tempfile::TempDir,
    hosts: Vec<Space>,
    _switch: Space,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn script(path: &Path, content: &str) {
    fs::write(path, content).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
}

impl Hosts {
    /// None where namespaces are not permitted.
    fn new() -> Option<Self> {
        let home = tempfile::tempdir().expect("a directory");
        // The users vrio and etcd run programs there.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let bin = home.path().join("bin");
        fs::create_dir(&bin).expect("ours");
        for (name, content) in
            [("systemctl", SYSTEMCTL), ("ssh", SSH), ("scp", SCP), ("apt-get", "#!/bin/sh\n")]
        {
            script(&bin.join(name), content);
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vrio"), bin.join("vrio")).expect("ours");
        let switch = Space::start(&["--net", "sleep", "infinity"])?;
        let mut hosts = Vec::new();
        for number in 1..=3 {
            let place = home.path().join(format!("host{number}"));
            fs::create_dir(&place).expect("ours");
            let place = place.to_str().expect("a path");
            let words = ["--net", "--mount", "sh", "-c", HOST, "sh", place];
            let host = Space::start(&words)?;
            let ready = Path::new(place).join("ready");
            let until = Instant::now() + PATIENCE;
            while !ready.exists() {
                assert!(Instant::now() < until, "host {number} is not made");
                std::thread::sleep(Duration::from_millis(20));
            }
            let pid = host.pid();
            fs::write(home.path().join(format!("pid-10.0.0.{number}")), &pid).expect("ours");
            let cable = format!(
                "ip link show br0 >/dev/null 2>&1 || ip link add br0 up type bridge; \
                 ip link add p{number} type veth peer name eth0 netns {pid}; \
                 ip link set p{number} master br0 up"
            );
            let plugged = Command::new("nsenter")
                .args(["-t", &switch.pid(), "-n", "sh", "-e", "-c", &cable])
                .output();
            assert!(plugged.as_ref().is_ok_and(|it| it.status.success()), "{plugged:?}");
            hosts.push(host);
        }
        let this = Self { home, hosts, _switch: switch };
        for number in 1..=3 {
            let address = format!("ip addr add 10.0.0.{number}/24 dev eth0; ip link set eth0 up");
            this.run(number, &address);
        }
        Some(this)
    }

    /// Runs commands on a host, as root.
    fn try_run(&self, host: usize, commands: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.home.path().join("bin");
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.hosts[host - 1].pid(), "-m", "-n", "sh", "-e", "-c", commands]);
        command.env("PATH", format!("{}:{path}", bin.display())).env("GUIDE", self.home.path());
        command.stdin(Stdio::null()).output().expect("nsenter runs")
    }

    fn run(&self, host: usize, commands: &str) -> Output {
        let output = self.try_run(host, commands);
        assert!(output.status.success(), "host {host}: {commands}\n{output:?}");
        output
    }

    /// Runs a command until its outcome is so.
    fn wait(&self, host: usize, command: &str, is: impl Fn(&Output) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let output = self.try_run(host, command);
            if is(&output) {
                return;
            }
            let logs = || text(&self.try_run(host, "tail -n 20 /run/*.log").stdout);
            assert!(Instant::now() < until, "host {host}: {command}\n{output:?}\n{}", logs());
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// A step of the guide: its words, and its blocks of commands or of a file.
#[derive(Default)]
struct Step {
    words: String,
    blocks: Vec<Vec<String>>,
}

fn steps() -> Vec<Step> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cluster.md");
    let page = fs::read_to_string(page).expect("the page");
    let guide = page.split("\n## ").find(|part| part.starts_with("From three empty hosts"));
    let mut steps: Vec<Step> = Vec::new();
    let mut in_block = false;
    for line in guide.expect("the guide").lines() {
        let (number, rest) = line.split_once(". ").unwrap_or_default();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            steps.push(Step { words: rest.to_owned(), blocks: Vec::new() });
            in_block = false;
        } else if let (Some(step), Some(command)) = (steps.last_mut(), line.strip_prefix("       "))
        {
            if !in_block {
                step.blocks.push(Vec::new());
            }
            step.blocks.last_mut().expect("it was begun").push(command.to_owned());
            in_block = true;
        } else {
            // An empty line of a file does not end the file.
            in_block &= line.is_empty();
        }
    }
    steps
}

fn is_well(output: &Output) -> bool {
    text(&output.stdout).starts_with("cluster rack1: all is well\n")
}

#[test]
fn the_guide_leads_from_three_empty_hosts_to_a_cluster() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP {TEST}: only root may make hosts");
    }
    let Some(hosts) = Hosts::new() else {
        return println!("SKIP {TEST}: namespaces are not permitted here");
    };
    let steps = steps();
    assert_eq!(steps.len(), 7, "the steps of the guide");
    for Step { words, blocks } in &steps {
        let everywhere = words.starts_with("On each host");
        for host in if everywhere { 1..=3 } else { 1..=1 } {
            for block in blocks {
                follow(&hosts, host, everywhere, block);
            }
        }
    }
    hosts.wait(1, "vrio cluster status --json", |output| {
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        status["verdict"] == "well"
            && nodes.len() == 3
            && nodes.iter().all(|node| node["state"] == "present")
    });
    hosts.wait(2, "vrio status", |output| {
        let said = text(&output.stdout);
        said.contains("cluster: rack1, present as io2")
    });
}

/// Follows a block on a host; a block for each host names the second one.
fn follow(hosts: &Hosts, host: usize, everywhere: bool, block: &[String]) {
    let own = |line: &str| match everywhere {
        true => line.replace("io2", &format!("io{host}")).replace("0.0.2", &format!("0.0.{host}")),
        false => line.to_owned(),
    };
    if block[0].starts_with("name = ") {
        let file: Vec<_> = block.iter().map(|line| own(line)).collect();
        let write = format!("cat >/etc/vrio/io{host}.toml <<'END'\n{}\nEND\n", file.join("\n"));
        hosts.run(host, &write);
        return;
    }
    for line in block {
        match line.as_str() {
            "vrio cluster status" => hosts.wait(host, line, is_well),
            "vrio status" => hosts.wait(host, line, |output| output.status.success()),
            line => drop(hosts.run(host, &own(line))),
        }
    }
}
