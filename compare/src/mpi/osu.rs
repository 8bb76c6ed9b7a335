//! The user's own OSU micro-benchmarks: where they are, and their output.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

use super::job::MpiJob;
use super::kinds::{self, Family};
use super::messages::{Messages, MpiOp};
use super::site::Site;
use crate::contest::TurnSample;

/// The depth of programs' folders under the given folder: OSU has `c/mpi/pt2pt/standard`.
const DEPTH_MAX: u32 = 6;

/// The most entries that are looked at: the folder may be a whole disk.
const ENTRIES_MAX: usize = 10_000;

/// Bytes in a program's file that show that it prints percentiles.
const PERCENTILES: &[u8] = b"Tail Lat";

/// About the time of an OSU program, in seconds: it counts rounds, not time.
const SECONDS: f64 = 5.0;

/// The user's programs.
#[derive(Debug)]
pub(super) struct Osu {
    folder: PathBuf,
    family: Family,
    programs: Vec<(MpiOp, PathBuf)>,
    has_percentiles: bool,
}

impl MpiOp {
    /// The name of the OSU program.
    fn osu(self) -> &'static str {
        match self {
            Self::Latency => "osu_latency",
            Self::Bandwidth => "osu_bw",
            Self::Both => "osu_bibw",
            Self::Rate => "osu_mbw_mr",
            Self::AllToAll => "osu_alltoall",
            Self::AllReduce => "osu_allreduce",
        }
    }

    const ALL: [Self; 6] =
        [Self::Latency, Self::Bandwidth, Self::Both, Self::Rate, Self::AllToAll, Self::AllReduce];
}

impl Osu {
    /// Looks for the programs in a folder and in those under it.
    ///
    /// # Errors
    /// When a program is not there, or the programs are of an MPI that is not known here.
    pub(super) fn find(folder: &Path) -> Result<Self> {
        let files = files(folder)?;
        let program = |op: MpiOp| {
            let name = op.osu();
            // Built with libtool, a script may have its name and the program be in `.libs`.
            let mut all = files.iter().filter(|file| file.file_name().is_some_and(|it| it == name));
            let is_program = |file: &&PathBuf| kinds::family_of(file).is_ok();
            let found = all.find(is_program);
            let found = found.with_context(|| {
                format!("--osu {}: there is no {name} of an MPI in it", folder.display())
            });
            Ok((op, found?.clone()))
        };
        let programs = MpiOp::ALL.into_iter().map(program).collect::<Result<Vec<_>>>()?;
        let first = &programs[0].1;
        let family = kinds::family_of(first)?;
        let bytes = fs::read(first).with_context(|| format!("reading {}", first.display()))?;
        let has_percentiles = bytes.windows(PERCENTILES.len()).any(|it| it == PERCENTILES);
        Ok(Self { folder: folder.to_owned(), family, programs, has_percentiles })
    }

    /// Whether the programs were built for this family.
    pub(super) fn is_of(&self, family: Family) -> bool {
        self.family == family
    }

    /// The message where the MPI of the programs is not found.
    pub(super) fn without_mpi(&self) -> String {
        let (folder, family) = (self.folder.display(), self.family);
        let (name, hint) = (family.name(), kinds::hint(family));
        format!("--osu {folder} was built for {name}, which is not found: {hint}")
    }

    /// Runs the programs that these cases need.
    pub(super) fn measure(
        &self,
        cases: &[Messages],
        site: &Site<'_>,
        job: &MpiJob<'_>,
        validate: bool,
    ) -> Result<Vec<TurnSample>> {
        let mut samples = Vec::new();
        for of_op in cases.chunk_by(|one, other| one.op == other.op) {
            let op = of_op[0].op;
            let (_, program) = self.programs.iter().find(|it| it.0 == op).expect("all are there");
            let sizes = of_op.iter().map(|case| case.bytes);
            let (least, most) = (sizes.clone().min().unwrap_or(8), sizes.max().unwrap_or(8));
            let mut words = vec!["-m".to_owned(), format!("{least}:{most}")];
            if self.has_percentiles && op != MpiOp::Rate {
                words.push("-z50,99".to_owned());
            }
            if validate && op != MpiOp::Rate {
                words.push("-c".to_owned());
            }
            let lines = site.run(job, program, &words, SECONDS)?;
            let table = OsuTable::read(&lines).with_context(|| program.display().to_string())?;
            for case in of_op {
                samples.push(table.sample(case).with_context(|| program.display().to_string())?);
            }
        }
        Ok(samples)
    }
}

/// Files in a folder and those under it.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![(folder.to_owned(), 0)]);
    while let Some((folder, depth)) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("--osu {}", folder.display()));
        for entry in entries?.flatten() {
            ensure!(
                found.len() + folders.len() < ENTRIES_MAX,
                "--osu {}: more than {ENTRIES_MAX} files; name the folder of the programs",
                folder.display()
            );
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => {
                    folders.push((entry.path(), depth + 1));
                }
                Ok(kind) if !kind.is_dir() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// The output of an OSU program: comments, one of which names the columns, and a row for each size.
#[derive(Debug, Default, PartialEq)]
struct OsuTable {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl OsuTable {
    /// Reads all of the output. Columns' names have single blanks in them.
    fn read(lines: &[String]) -> Result<Self> {
        let mut table = Self::default();
        for line in lines {
            let bare = line.trim_start_matches('#').trim();
            if bare.starts_with("Size") {
                let names = bare.split("  ").map(str::trim).filter(|name| !name.is_empty());
                table.columns = names.map(str::to_lowercase).collect();
            } else if line.starts_with(|first: char| first.is_ascii_digit()) {
                table.rows.push(bare.split_whitespace().map(str::to_owned).collect());
            }
        }
        ensure!(!table.columns.is_empty(), "no line names the columns: {}", lines.join(" / "));
        Ok(table)
    }

    fn column(&self, words: &str) -> Option<usize> {
        self.columns.iter().position(|name| name.contains(words))
    }

    /// The row of a case.
    fn sample(&self, case: &Messages) -> Result<TurnSample> {
        let bytes = case.bytes.to_string();
        let row = self.rows.iter().find(|row| row[0] == bytes);
        let row = row.with_context(|| format!("it has no row of {bytes} bytes"))?;
        let number = |words: &str| -> Result<f64> {
            let found = self.column(words).and_then(|at| row.get(at));
            let word = found.with_context(|| format!("it has no column {words:?}"))?;
            let number = word.parse().ok().filter(|number: &f64| *number > 0.0);
            number.with_context(|| format!("{words}: {word} is no number"))
        };
        if let Some(at) = self.column("validation") {
            let said = row.get(at).map_or("nothing", String::as_str);
            ensure!(said == "Pass", "its validation of {bytes} bytes says {said}");
        }
        let rate = match case.op {
            MpiOp::Bandwidth | MpiOp::Both => {
                number("bandwidth (mb/s)").or_else(|_| number("mb/s"))
            }
            MpiOp::Rate => number("messages/s"),
            MpiOp::Latency | MpiOp::AllToAll | MpiOp::AllReduce => {
                number("latency").map(|microseconds| 1e6 / microseconds)
            }
        };
        // OSU's percentiles of bandwidth are rates; ours are the times of windows.
        let is_time = !case.op.is_in_bytes() && case.op != MpiOp::Rate;
        let percentile = |words| is_time.then(|| number(words).ok()).flatten();
        Ok(TurnSample::without_processor_time(
            rate.map_err(|error| anyhow!("{error:#}"))?,
            percentile("p50"),
            percentile("p99"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stand-in `vrio/tests/mpi/like_osu.c` of our tests prints this in OSU's form, with
    /// invented numbers.
    const LATENCY: &str = "
# OSU MPI Latency Test v0.0 (not OSU's: a stand-in of vrio's tests)
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)  P50 Tail Lat(us)  P99 Tail Lat(us)        Validation
8                       0.50              0.40              2.25              Pass
1024                    2.00              1.50              4.50              Fail
";
    const PAIRS: &str = "\
# OSU MPI Multiple Bandwidth / Message Rate Test v0.0 (not OSU's: a stand-in of vrio's tests)
# [ pairs: 1 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
8                      32.00        4000000.00
";
    const BANDWIDTH: &str = "\
# OSU MPI Bandwidth Test v0.0 (not OSU's: a stand-in of vrio's tests)
# Size      Bandwidth (MB/s)
65536                8000.00
";

    fn sample(said: &str, op: MpiOp, bytes: u32) -> Result<TurnSample> {
        let lines: Vec<_> = said.lines().map(str::to_owned).collect();
        OsuTable::read(&lines)?.sample(&Messages { op, bytes, ranks: 2 })
    }

    #[test]
    fn their_tables_are_read_by_the_names_of_their_columns() {
        let latency = sample(LATENCY, MpiOp::Latency, 8).unwrap();
        assert_eq!((latency.rate, latency.p50_us, latency.p99_us), (2e6, Some(0.4), Some(2.25)));
        assert_eq!(sample(PAIRS, MpiOp::Rate, 8).unwrap().rate, 4e6);
        let bandwidth = sample(BANDWIDTH, MpiOp::Bandwidth, 65_536).unwrap();
        assert_eq!((bandwidth.rate, bandwidth.p50_us), (8000.0, None));
    }

    #[test]
    fn malformed_output_is_named() {
        let said = |said: &str, op, bytes| sample(said, op, bytes).unwrap_err().to_string();
        assert!(said(LATENCY, MpiOp::Latency, 1024).contains("validation of 1024 bytes says Fail"));
        assert!(said(LATENCY, MpiOp::Latency, 64).contains("no row of 64 bytes"));
        assert!(said(BANDWIDTH, MpiOp::Rate, 65_536).contains("no column \"messages/s\""));
        assert!(said("8  1.0\n", MpiOp::Latency, 8).contains("names the columns"));
        assert!(said("# Size  Latency (us)\n8  nan\n", MpiOp::Latency, 8).contains("no number"));
    }

    #[test]
    fn a_folder_without_them_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("pt2pt");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("osu_latency"), "#!/bin/sh\n").unwrap();
        let said = Osu::find(folder.path()).unwrap_err().to_string();
        assert!(said.contains("no osu_latency of an MPI"), "{said}");
    }
}
