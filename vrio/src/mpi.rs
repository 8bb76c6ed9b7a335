//! `vrio mpi ..`: the settings that make an MPI's processes use the fabric.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use node::Config;
use node::status::DomainStatus;

use crate::client;
use crate::failure::CommandFailure;
use crate::nodes::Target;
use crate::output::print;

pub(crate) const MPI_EXAMPLES: &str = "Examples:
  eval \"$(vrio mpi env)\"              this shell's Open MPI uses the fabric of this host's node
  mpirun -n 4 ./program
  eval \"$(vrio mpi env --mpi mpich --domain science)\"
  $(vrio mpi env --hosts h1,h2) -n 4 ./program    on two hosts: prints the start of an mpirun
  vrio mpi env --config /etc/vrio/io1.toml    for users without access to the control socket
  vrio mpi env --vm > vm.env          for a VM that has a vf: read it there (. ./vm.env)";

/// The file that libfabric looks for: any other ending is not loaded.
const PROVIDER: &str = "libvrio-fi.so";

/// The name that Cargo gives to this file.
const PROVIDER_BUILT: &str = "libvrio_fi.so";

#[derive(Debug, Subcommand)]
pub(crate) enum MpiCommand {
    /// Print the environment that makes an MPI use a domain of this host's node, for a shell.
    #[command(after_help = MPI_EXAMPLES)]
    Env(EnvArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    /// Which MPI.
    #[arg(long, value_enum, default_value_t = Mpi::Openmpi)]
    mpi: Mpi,
    /// Print the beginning of a command line instead: it starts a job on these hosts, and MPI
    /// carries the environment to them. Sockets, keys and libraries must have the same paths there.
    #[arg(long, value_name = "HOST,..")]
    hosts: Option<String>,
    /// The domain; not needed where there is only one.
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// The node's configuration, which is read instead of asking the node.
    #[command(flatten)]
    target: Target,
    /// Print it for processes inside of this host's virtual machines, which must have the key's
    /// file and the provider at the same paths.
    #[arg(long)]
    vm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mpi {
    /// Open MPI 4 and 5.
    Openmpi,
    /// MPICH 4 and 5 with `ch4:ofi`, and MPIs that are made of it.
    Mpich,
    /// Intel MPI.
    Intel,
}

impl Mpi {
    /// The variables that select the provider, besides libfabric's own.
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // The last one is Open MPI 5's name for the one before it.
            Self::Openmpi => &[
                ("OMPI_MCA_pml", "cm"),
                ("OMPI_MCA_mtl", "ofi"),
                ("OMPI_MCA_mtl_ofi_provider_include", "vrio"),
                ("OMPI_MCA_opal_common_ofi_provider_include", "vrio"),
            ],
            Self::Mpich => &[("MPIR_CVAR_CH4_NETMOD", "ofi")],
            Self::Intel => &[("I_MPI_FABRICS", "ofi"), ("I_MPI_OFI_PROVIDER", "vrio")],
        }
    }
}

/// A domain, and where it is joined.
#[derive(Debug, PartialEq, Eq)]
struct Domain {
    name: String,
    socket: String,
    key: String,
}

pub(crate) fn mpi(command: &MpiCommand) -> Result<(), CommandFailure> {
    let MpiCommand::Env(args) = command;
    let domains = match args.target.config() {
        Some(config) => of_file(config)?,
        None => of_node(&args.target.socket()?)?,
    };
    let mut domain = choose(domains, args.domain.as_deref())?;
    if args.vm {
        node::FABRIC_IN_VM.clone_into(&mut domain.socket);
    }
    let program =
        std::env::current_exe().context("this program's path").map_err(CommandFailure::running)?;
    let directory = provider_directory(&program)?;
    match &args.hosts {
        Some(hosts) => print(&command_line(args.mpi, hosts, &domain, &directory)),
        None => print(&script(args.mpi, &domain, &directory)),
    }
}

fn of_file(path: &Path) -> Result<Vec<Domain>, CommandFailure> {
    let config = Config::load(path).map_err(CommandFailure::configuration)?;
    let socket = config.fabric.display().to_string();
    let domain = |it: node::config::DomainConfig| Domain {
        name: it.name,
        socket: socket.clone(),
        key: it.key.display().to_string(),
    };
    Ok(config.objects.domains.into_iter().map(domain).collect())
}

fn of_node(control: &Path) -> Result<Vec<Domain>, CommandFailure> {
    let answer = client::get(control, "/v1/domains").map_err(|error| {
        let way_out = "or name its configuration, which is read instead: --config FILE";
        CommandFailure::no_answer(error.context(way_out))
    })?;
    let domains: Vec<DomainStatus> = serde_json::from_str(&answer)
        .context("the node's answer cannot be read; the node may be of another release")
        .map_err(CommandFailure::running)?;
    let domain = |it: DomainStatus| Domain { name: it.name, socket: it.socket, key: it.key };
    Ok(domains.into_iter().map(domain).collect())
}

/// The domain of that name, or the only domain.
fn choose(domains: Vec<Domain>, name: Option<&str>) -> Result<Domain, CommandFailure> {
    let known = domains.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    let refused = |text: String| Err(CommandFailure::configuration(anyhow!(text)));
    if domains.is_empty() {
        let text = "the node has no domain; make one with `vrio domain add NAME --key FILE`, or a \
                    [[domain]] in its configuration";
        return refused(text.to_owned());
    }
    let mut wanted = domains.into_iter().filter(|it| name.is_none_or(|name| it.name == name));
    match (wanted.next(), wanted.next()) {
        (Some(domain), None) => Ok(domain),
        (Some(_), Some(_)) => {
            refused(format!("the node has several domains ({known}); say which: --domain NAME"))
        }
        (None, _) => {
            let name = name.unwrap_or_default();
            refused(format!("the node has no domain {name:?}; there is {known}"))
        }
    }
}

/// The provider's file.
pub(crate) fn provider(program: &Path) -> Result<PathBuf, CommandFailure> {
    Ok(provider_directory(program)?.join(PROVIDER))
}

/// The provider's directory: the program's own, or the one that an installation uses. Cargo puts
/// both files side by side and gives the provider a name that libfabric does not look for, so a
/// link gives it the right name.
fn provider_directory(program: &Path) -> Result<PathBuf, CommandFailure> {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let beside = program.parent().unwrap_or(Path::new("/"));
    let installed = beside.parent().unwrap_or(beside).join("lib/vrio");
    let found = [beside, &installed].into_iter().find(|it| it.join(PROVIDER).is_file());
    if let Some(found) = found {
        return Ok(found.to_owned());
    }
    // A build by Cargo: only the right name is missing.
    let built = beside.join(PROVIDER_BUILT);
    let named = beside.join(PROVIDER);
    if built.is_file() && symlink(PROVIDER_BUILT, &named).is_ok() | named.is_file() {
        return Ok(beside.to_owned());
    }
    let built = if built.is_file() { built } else { PathBuf::from(PROVIDER_BUILT) };
    let text = format!(
        "there is no {PROVIDER} in {beside:?} or {installed:?}; `cargo build --release` builds it, \
         and this puts it there: install -D {built:?} {:?}",
        installed.join(PROVIDER)
    );
    Err(CommandFailure::configuration(anyhow!(text)))
}

/// All variables that must be set.
fn environment(mpi: Mpi, domain: &Domain, directory: &Path) -> Vec<(&'static str, String)> {
    let own = [
        ("FI_PROVIDER_PATH", directory.display().to_string()),
        ("FI_PROVIDER", "vrio".to_owned()),
        ("VRIO_FABRIC", domain.socket.clone()),
        ("VRIO_DOMAIN", domain.name.clone()),
        ("VRIO_DOMAIN_KEY_FILE", domain.key.clone()),
    ];
    let of_mpi = mpi.variables().iter().map(|(name, value)| (*name, (*value).to_owned()));
    own.into_iter().chain(of_mpi).collect()
}

/// Lines for a shell.
fn script(mpi: Mpi, domain: &Domain, directory: &Path) -> String {
    let all = environment(mpi, domain, directory).into_iter();
    all.map(|(name, value)| format!("export {name}={}\n", quoted(&value))).collect()
}

/// The beginning of a command line, up to the program. Its words are not quoted: a shell splits the
/// output of `$(..)` at spaces and nowhere else.
fn command_line(mpi: Mpi, hosts: &str, domain: &Domain, directory: &Path) -> String {
    let (run, option) = match mpi {
        Mpi::Openmpi => ("mpirun", "--host"),
        Mpi::Mpich | Mpi::Intel => ("mpiexec", "-hosts"),
    };
    let mut words = [run, option, hosts].map(str::to_owned).to_vec();
    for (name, value) in environment(mpi, domain, directory) {
        match (mpi, name.strip_prefix("OMPI_MCA_")) {
            (Mpi::Openmpi, Some(option)) => words.extend(["--mca".into(), option.into(), value]),
            (Mpi::Openmpi, None) => words.extend(["-x".into(), format!("{name}={value}")]),
            _ => words.extend(["-genv".into(), name.into(), value]),
        }
    }
    words.join(" ") + "\n"
}

/// Any text as one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(name: &str) -> Domain {
        let socket = "/run/vrio/io1.fabric".to_owned();
        Domain { name: name.to_owned(), socket, key: "/etc/vrio/it's.key".to_owned() }
    }

    #[test]
    fn a_shell_reads_what_is_printed() {
        for mpi in Mpi::value_variants() {
            let mut script = script(*mpi, &domain("blue"), Path::new("/opt/my vrio"));
            script +=
                "printf '%s|' \"$FI_PROVIDER_PATH\" \"$FI_PROVIDER\" \"$VRIO_DOMAIN_KEY_FILE\" ";
            script += "\"${OMPI_MCA_pml-}\" \"${MPIR_CVAR_CH4_NETMOD-}\" \"${I_MPI_FABRICS-}\"";
            let said = std::process::Command::new("sh").arg("-euc").arg(script).output().unwrap();
            let said = String::from_utf8(said.stdout).unwrap();
            let own = match mpi {
                Mpi::Openmpi => "cm|||",
                Mpi::Mpich => "|ofi||",
                Mpi::Intel => "||ofi|",
            };
            assert_eq!(said, format!("/opt/my vrio|vrio|/etc/vrio/it's.key|{own}"));
        }
    }

    #[test]
    fn a_job_over_several_hosts_carries_the_environment_along() {
        let line = |mpi| command_line(mpi, "h1,h2", &domain("blue"), Path::new("/opt/vrio"));
        let open = line(Mpi::Openmpi);
        assert!(
            open.starts_with("mpirun --host h1,h2 -x FI_PROVIDER_PATH=/opt/vrio -x "),
            "{open}"
        );
        assert!(open.contains(" --mca pml cm --mca mtl ofi "), "{open}");
        let mpich = line(Mpi::Mpich);
        assert!(mpich.starts_with("mpiexec -hosts h1,h2 -genv FI_PROVIDER_PATH /opt"), "{mpich}");
        assert!(mpich.ends_with(" -genv MPIR_CVAR_CH4_NETMOD ofi\n"), "{mpich}");
    }

    #[test]
    fn the_only_domain_needs_no_name() {
        let some = || vec![domain("blue"), domain("red")];
        assert_eq!(choose(vec![domain("blue")], None).unwrap(), domain("blue"));
        assert_eq!(choose(some(), Some("red")).unwrap(), domain("red"));
        let error = |it: Result<Domain, CommandFailure>| it.unwrap_err().to_string();
        assert!(error(choose(some(), None)).contains("several domains (blue, red)"));
        assert!(error(choose(some(), Some("green"))).contains("there is blue, red"));
        assert!(error(choose(Vec::new(), None)).contains("vrio domain add"));
    }

    #[test]
    fn the_provider_is_found_beside_the_program_or_where_it_is_installed() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let touch = |path: &Path| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        let program = home.join("bin/vrio");
        touch(&program);
        let error = provider_directory(&program).unwrap_err().to_string();
        assert!(error.contains("install -D \"libvrio_fi.so\""), "{error}");
        // Cargo's name, and a directory at the right name.
        touch(&home.join("bin/libvrio_fi.so"));
        std::fs::create_dir(home.join("bin/libvrio-fi.so")).unwrap();
        let error = provider_directory(&program).unwrap_err().to_string();
        assert!(error.contains("bin/libvrio_fi.so"), "{error}");
        touch(&home.join("lib/vrio/libvrio-fi.so"));
        assert_eq!(provider_directory(&program).unwrap(), home.join("lib/vrio"));
        std::fs::remove_dir_all(home.join("lib")).unwrap();
        std::fs::remove_dir(home.join("bin/libvrio-fi.so")).unwrap();
        for _ in 0..2 {
            assert_eq!(provider_directory(&program).unwrap(), home.join("bin"));
            assert!(home.join("bin/libvrio-fi.so").is_file());
        }
    }
}
