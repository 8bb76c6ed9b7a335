//! The slow-downs of WRF and Quantum ESPRESSO, predicted on a platform that is held out.
//!
//! The texts have no profile with counts, so one number of each application is fitted: how many
//! messages it sends for a second of computation. It is fitted on one platform, beside the native
//! one, and the other platform is predicted from its curve alone.

use super::figures::Figures;
use crate::application::{Platform, Profile, predict};
use crate::fault::PlanFault;

const WRF: &str = include_str!("../../data/profile-wrf.toml");
const QE_SHORT: &str = include_str!("../../data/profile-qe-short.toml");
const QE_LONG: &str = include_str!("../../data/profile-qe-long.toml");

/// The run times beside native InfiniBand's that fits use: "44% increase", "over 500%" and, for the
/// virtual machines' computation, "about 15%" and "28%".
const WRF_CC2: f64 = 1.44;
const QE_CC2: f64 = 6.0;
const WRF_SRIOV: f64 = 1.15;
const QE_SRIOV: f64 = 1.28;

/// Seconds of an application's shape on a platform.
#[derive(Clone, Copy, Debug)]
struct ShapeTime {
    computation: f64,
    messages: f64,
}

/// An application's shape on the native platform, EC2 and SR-IOV.
#[derive(Clone, Copy, Debug)]
struct Shape {
    native: ShapeTime,
    cc2: ShapeTime,
    sriov: ShapeTime,
}

impl Shape {
    fn read(text: &str) -> Result<Self, PlanFault> {
        let names = ["ib-native", "ec2-cc2", "ib-sriov"];
        let platforms = names.map(Platform::shipped).into_iter().collect::<Result<Vec<_>, _>>()?;
        Self::on(text, &platforms)
    }

    /// The shape on the three platforms.
    fn on(text: &str, platforms: &[Platform]) -> Result<Self, PlanFault> {
        let profile = Profile::read("the shape of an application", text)?;
        let times = predict(&profile, platforms)?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let of = |at: usize| ShapeTime {
            computation: seconds(times[at].computation.likely_ns),
            messages: seconds(times[at].communication.likely_ns),
        };
        Ok(Self { native: of(0), cc2: of(1), sriov: of(2) })
    }

    /// So many times the shape's messages make a platform `slowdown` times as slow as the native
    /// one. With `messages` of both and `computation` of both this is one linear equation.
    fn fitted(&self, there: ShapeTime, slowdown: f64) -> f64 {
        let more = slowdown * self.native.computation - there.computation;
        more / (there.messages - slowdown * self.native.messages)
    }

    /// The run time on a platform beside the native one, with so many times the messages, if
    /// computation there takes `computation` times as long as its clock says.
    fn slowdown(&self, there: ShapeTime, messages: f64, computation: f64) -> f64 {
        let run = computation * there.computation + messages * there.messages;
        run / (self.native.computation + messages * self.native.messages)
    }

    /// The factor of computation on a platform that, with so many times the messages, makes it
    /// `slowdown` times as slow.
    fn computation(&self, there: ShapeTime, messages: f64, slowdown: f64) -> f64 {
        let whole = slowdown * (self.native.computation + messages * self.native.messages);
        (whole - messages * there.messages) / there.computation
    }

    /// The slow-down on SR-IOV of a run of nothing but messages.
    fn most(&self) -> f64 {
        self.sriov.messages / self.native.messages
    }

    /// The share of messages in the native run, in percent.
    fn share(&self, messages: f64) -> f64 {
        let sent = messages * self.native.messages;
        100.0 * sent / (self.native.computation + sent)
    }
}

/// The figures of both applications.
pub(super) fn applications(ours: &mut Figures) -> Result<(), PlanFault> {
    figures(ours, Shape::read(WRF)?, [Shape::read(QE_SHORT)?, Shape::read(QE_LONG)?]);
    Ok(())
}

/// The figures of WRF's shape and of both of Quantum ESPRESSO.
fn figures(ours: &mut Figures, wrf: Shape, qe: [Shape; 2]) {
    let wrf_messages = wrf.fitted(wrf.cc2, WRF_CC2);
    ours.insert("app.wrf.cc2", wrf.slowdown(wrf.cc2, wrf_messages, 1.0));
    ours.insert("app.wrf.share", wrf.share(wrf_messages));
    ours.insert("app.wrf.sriov", wrf.slowdown(wrf.sriov, wrf_messages, 1.0));
    ours.insert("app.wrf.most", wrf.most());
    // The computation in SR-IOV's virtual machines, by one application for the other.
    let in_vms = wrf.computation(wrf.sriov, wrf_messages, WRF_SRIOV);
    let names = [
        ["app.qe.share.short", "app.qe.most.short", "app.qe.short", "app.qe.vms.short"],
        ["app.qe.share.long", "app.qe.most.long", "app.qe.long", "app.qe.vms.long"],
    ];
    for (qe, names) in qe.into_iter().zip(names) {
        let messages = qe.fitted(qe.cc2, QE_CC2);
        ours.insert(names[0], qe.share(messages));
        ours.insert(names[1], qe.most());
        ours.insert(names[2], qe.slowdown(qe.sriov, messages, 1.0));
        ours.insert(names[3], qe.slowdown(qe.sriov, messages, in_vms));
    }
    let qe_messages = qe[0].fitted(qe[0].cc2, QE_CC2);
    ours.insert("app.qe.cc2", qe[0].slowdown(qe[0].cc2, qe_messages, 1.0));
    let in_vms = qe[0].computation(qe[0].sriov, qe_messages, QE_SRIOV);
    ours.insert("app.wrf.vms", wrf.slowdown(wrf.sriov, wrf_messages, in_vms));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_meets_the_platform_that_it_is_of() {
        for (text, slowdown) in [(WRF, WRF_CC2), (QE_SHORT, QE_CC2), (QE_LONG, QE_CC2)] {
            let shape = Shape::read(text).unwrap();
            let messages = shape.fitted(shape.cc2, slowdown);
            assert!(messages > 0.0, "{shape:?}");
            assert!((shape.slowdown(shape.cc2, messages, 1.0) - slowdown).abs() < 1e-9);
            let computation = shape.computation(shape.sriov, messages, 1.2);
            assert!((shape.slowdown(shape.sriov, messages, computation) - 1.2).abs() < 1e-9);
        }
    }

    /// No number of messages makes SR-IOV as slow as its text says: even a run of nothing but
    /// messages has their overhead at most. So neither can be fitted there, and EC2 be held out.
    #[test]
    fn messages_alone_do_not_make_sriov_as_slow_as_it_was() {
        for (text, slowdown, most) in
            [(WRF, WRF_SRIOV, 1.015), (QE_SHORT, QE_SRIOV, 1.131), (QE_LONG, QE_SRIOV, 1.015)]
        {
            let shape = Shape::read(text).unwrap();
            assert!((shape.most() - most).abs() < 0.0005, "{}", shape.most());
            assert!(shape.slowdown(shape.sriov, 1e12, 1.0) < slowdown, "{text}");
            assert!(shape.fitted(shape.sriov, slowdown) < 0.0, "{text}");
        }
    }

    /// The two assumptions of the shapes decide nothing: the share of WRF's messages that stay on a
    /// host, and the time of a message there.
    #[test]
    fn assumptions_within_hosts_change_little() {
        let mut least = Figures::new();
        let mut most = Figures::new();
        for ns in [100, 500, 1000] {
            let platforms = ["ib-native", "ec2-cc2", "ib-sriov"].map(|name| {
                let near = "[within_host]\npeak_mb_per_s = 5000\nlatency";
                let near = format!("{near} = [{{ bytes = 0, ns = {ns} }}]");
                let shipped = crate::application::PLATFORMS;
                let text = shipped.iter().find(|(it, _)| *it == name).unwrap().1;
                Platform::read(name, &format!("{text}\n{near}")).unwrap()
            });
            for local in ["0", "1/2", "4/5"] {
                let wrf = WRF.replace("local = \"1/2\"", &format!("local = \"{local}\""));
                let of = |text: &str| Shape::on(text, &platforms).unwrap();
                let mut all = Figures::new();
                figures(&mut all, of(&wrf), [of(QE_SHORT), of(QE_LONG)]);
                for (name, number) in all {
                    let least = least.entry(name).or_insert(number);
                    *least = least.min(number);
                    let most = most.entry(name).or_insert(number);
                    *most = most.max(number);
                }
            }
        }
        let ends = |name| [&least, &most].map(|all| (all[name] * 100.0).round() / 100.0);
        // As docs/planning.md has it.
        for (name, numbers) in [
            ("app.wrf.sriov", [1.0, 1.0]),
            ("app.qe.short", [1.02, 1.02]),
            ("app.qe.long", [1.0, 1.0]),
            ("app.wrf.vms", [1.27, 1.35]),
            ("app.qe.vms.short", [1.13, 1.16]),
            ("app.qe.vms.long", [1.12, 1.12]),
            ("app.qe.most.short", [1.08, 1.23]),
        ] {
            assert_eq!(ends(name), numbers, "{name}");
        }
    }
}
