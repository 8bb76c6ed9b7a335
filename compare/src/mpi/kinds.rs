//! The MPIs that are installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::running::find as find_program;

/// The family of an MPI, which decides its options and variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI.
    OpenMpi,
    /// MPICH.
    Mpich,
}

impl Family {
    /// Its name for `vrio mpi env --mpi`.
    pub fn word(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }

    /// The library that its programs load.
    pub(super) fn library(self) -> &'static str {
        match self {
            Self::OpenMpi => "libmpi.so.40",
            Self::Mpich => "libmpi.so.12",
        }
    }
}

/// An MPI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mpi {
    /// The family, which decides its options and variables.
    pub family: Family,
    /// Its version, as it says it itself.
    pub version: String,
    /// The launcher of its programs.
    pub run: PathBuf,
    /// Its compiler.
    pub compile: PathBuf,
}

impl Mpi {
    /// Its name with its version.
    pub fn name(&self) -> String {
        format!("{} {}", self.family.name(), self.version)
    }

    /// The first number of its version.
    pub(super) fn major(&self) -> u32 {
        self.version.split('.').next().and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    /// Asks it which it is.
    fn of(run: PathBuf, compile: PathBuf) -> Result<Self> {
        for program in [&run, &compile] {
            ensure!(program.is_file(), "there is no {}", program.display());
        }
        let asked = Command::new(&run).arg("--version").stdin(Stdio::null()).output();
        let asked = asked.with_context(|| format!("running {}", run.display()))?;
        let said = String::from_utf8_lossy(&asked.stdout);
        let Some((family, version)) = version(&said) else {
            bail!("{} --version is not understood: {}", run.display(), said.trim());
        };
        Ok(Self { family, version, run, compile })
    }
}

/// Reads the family and the version from a launcher's output.
fn version(said: &str) -> Option<(Family, String)> {
    let first = said.lines().next()?;
    let word = |line: &str| line.split_whitespace().next_back().map(str::to_owned);
    if first.contains("Open MPI") || first.contains("OpenRTE") {
        return Some((Family::OpenMpi, word(first)?));
    }
    if first.contains("HYDRA") {
        let line = said.lines().find(|line| line.trim_start().starts_with("Version:"))?;
        return Some((Family::Mpich, word(line)?));
    }
    None
}

/// Names that may be in `PATH`: Debian's names of MPIs that are installed side by side, and the
/// usual ones.
const NAMES: [[&str; 2]; 3] =
    [["mpirun.openmpi", "mpicc.openmpi"], ["mpirun.mpich", "mpicc.mpich"], ["mpirun", "mpicc"]];

/// Finds the MPIs in `PATH` and under the given prefixes. An MPI of `PATH` that is missing or not
/// understood is named in `missing`.
///
/// # Errors
/// When a prefix has no MPI, or none is found.
pub fn find(prefixes: &[PathBuf], missing: &mut Vec<String>) -> Result<Vec<Mpi>> {
    let mut found: Vec<Mpi> = Vec::new();
    let mut add = |mpi: Mpi| {
        // The same one by another name.
        if found.iter().all(|it| it.name() != mpi.name()) {
            found.push(mpi);
        }
    };
    for prefix in prefixes {
        let [run, compile] = ["bin/mpirun", "bin/mpicc"].map(|name| prefix.join(name));
        add(Mpi::of(run, compile).with_context(|| format!("--mpi {}", prefix.display()))?);
    }
    for names in NAMES {
        let [Some(run), Some(compile)] = names.map(find_program) else { continue };
        // A launcher that is not understood may be of an MPI that is not known here.
        match Mpi::of(run, compile) {
            Ok(mpi) => add(mpi),
            Err(why) => missing.push(format!("{}: {why:#}", names[0])),
        }
    }
    if let Some(why) = none_of(Family::Mpich, &found) {
        missing.push(why);
    }
    ensure!(!found.is_empty(), "no MPI is found; {}", hint(Family::OpenMpi));
    Ok(found)
}

fn none_of(family: Family, found: &[Mpi]) -> Option<String> {
    let is_there = found.iter().any(|mpi| mpi.family == family);
    (!is_there).then(|| format!("{} ({})", family.name(), hint(family)))
}

/// The way to install an MPI.
pub(super) fn hint(family: Family) -> &'static str {
    match family {
        Family::OpenMpi => "Debian: openmpi-bin and libopenmpi-dev; others by --mpi PREFIX",
        Family::Mpich => {
            "python3 -m venv DIR && DIR/bin/pip install mpich, then --mpi DIR; Debian's own is \
             built without libfabric"
        }
    }
}

/// The MPI whose library a program loads, by the library's name in the file.
pub(super) fn family_of(program: &Path) -> Result<Family> {
    let bytes = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let has = |name: &str| bytes.windows(name.len()).any(|it| it == name.as_bytes());
    let family = [Family::OpenMpi, Family::Mpich].into_iter().find(|it| has(it.library()));
    family.with_context(|| {
        format!("{} is linked neither to Open MPI's library nor to MPICH's", program.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_say_what_they_are() {
        let known = |said| version(said).map(|(family, version)| (family.name(), version));
        let open = |version: &str| Some(("Open MPI", version.to_owned()));
        assert_eq!(known("mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to x\n"), open("4.1.4"));
        assert_eq!(known("mpirun (Open MPI) 5.0.11\n"), open("5.0.11"));
        let hydra = "HYDRA build details:\n    Version:          5.0.2\n    Release Date: never\n";
        assert_eq!(known(hydra), Some(("MPICH", "5.0.2".to_owned())));
        assert_eq!(known("Intel(R) MPI Library for Linux"), None);
        assert_eq!(known(""), None);
    }

    #[test]
    fn a_missing_mpi_that_was_asked_for_is_named() {
        let said = find(&["/nowhere".into()], &mut Vec::new()).unwrap_err();
        assert!(format!("{said:#}").contains("--mpi /nowhere: there is no"), "{said:#}");
    }
}
