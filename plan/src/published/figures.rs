//! The planner's own figures, by the names of the published ones.

use super::{BTreeMap, Bill, PlanFault, RACKS, RackForm, ServerBuild, cost};
use crate::cost::form::{PartForm, PlanForm};

pub(super) type Figures = BTreeMap<&'static str, f64>;

/// All of them.
pub(super) fn ours() -> Result<Figures, PlanFault> {
    let mut ours = Figures::new();
    let three = RackForm::read("r930-3", RACKS[0].1)?;
    let six = RackForm::read("r930-6", RACKS[1].1)?;
    let names = [
        ["rack3.elvis", "rack3.vrio", "rack3.change", "rack3.spare"],
        ["rack6.elvis", "rack6.vrio", "rack6.change", "rack6.spare"],
    ];
    for (rack, names) in [&three, &six].into_iter().zip(names) {
        let compared = cost::compare(rack)?;
        let [elvis, vrio, _spare] = compared.bills.as_slice() else { continue };
        ours.insert(names[0], dollars(elvis.total_cents.0));
        ours.insert(names[1], dollars(vrio.total_cents.0));
        ours.insert(names[2], percents(compared.change_of_parts[1]));
        ours.insert(names[3], percents(compared.change_of_parts[2]));
    }
    servers(&mut ours, &cost::compare(&three)?.bills, &cost::compare(&six)?.bills);
    drives(&mut ours, six)?;
    upgrade(&mut ours, &three);
    connections(&mut ours);
    super::applications::applications(&mut ours)?;
    Ok(ours)
}

fn dollars(cents: u64) -> f64 {
    cents as f64 / 100.0
}

fn percents(hundredths: Option<i64>) -> f64 {
    hundredths.map_or(f64::NAN, |hundredths| hundredths as f64 / 100.0)
}

fn gbit(bits: u64) -> f64 {
    bits as f64 / 1e9
}

/// The four servers of the slides.
fn servers(ours: &mut Figures, three: &[Bill], six: &[Bill]) {
    let all = [
        ("elvis", &three[0].servers[0]),
        ("vmhost", &three[1].servers[0]),
        ("light", &three[1].servers[1]),
        ("heavy", &six[1].servers[1]),
    ];
    let names = [
        ["price.elvis", "bits.elvis", "cards.elvis"],
        ["price.vmhost", "bits.vmhost", "cards.vmhost"],
        ["price.light", "bits.light", "cards.light"],
        ["price.heavy", "bits.heavy", "cards.heavy"],
    ];
    for ((_, server), names) in all.iter().zip(names) {
        ours.insert(names[0], dollars(server.price_cents.0));
        ours.insert(names[1], gbit(server.build.required_bits));
        ours.insert(names[2], gbit(server.build.provided_bits));
    }
    let bits = |build: &ServerBuild| (build.required_bits * build.count) as f64;
    let (vmhosts, iohost) = (&three[1].servers[0].build, &three[1].servers[1].build);
    ours.insert("twice", bits(iohost) / bits(vmhosts));
    ours.insert("half", three[1].sidecores as f64 / three[0].sidecores as f64);
}

/// A drive in each of six hosts, of which the pool keeps all or one.
fn drives(ours: &mut Figures, mut rack: RackForm) -> Result<(), PlanFault> {
    for (name, kept) in [("ssd.least", 6), ("ssd.most", 1)] {
        let with_drives = |(plan, ssds): (&mut PlanForm, u64)| plan.ssds = ssds;
        rack.plan.iter_mut().zip([1, kept, kept]).for_each(with_drives);
        ours.insert(name, percents(cost::compare(&rack)?.change_of_parts[1]));
    }
    Ok(())
}

/// The slides' two processors.
fn upgrade(ours: &mut Figures, rack: &RackForm) {
    let of = |name: &str, value: fn(&PartForm) -> u64| {
        rack.part.get(name).map_or(f64::NAN, |part| value(part) as f64)
    };
    let ratio = |value| of("e7-8870-v2", value) / of("e7-8850-v2", value);
    ours.insert("upgrade.price", ratio(|part| part.price_usd.0));
    ours.insert("upgrade.cores", ratio(|part| part.size));
}

/// Nodes and cores of the XRC slides' cluster, all of whose processes talk to one another (FT).
const NODES: u64 = 8;
const CORES: u64 = 16;
/// Bytes of a queue pair: "12KB memory for each QP".
const QUEUE_PAIR_BYTES: u64 = 12 << 10;
/// Nodes of 64K processes.
const NODES_OF_64K: u64 = 65_536 / CORES;

/// Connections by XRC. A process has one to each place whose processes share a receive queue: a
/// VM, or with VM-proof XRC a node, its own one included, since it has other VMs.
fn connections(ours: &mut Figures) {
    let to_vms = |of_vm: u64| (NODES * CORES / of_vm - 1) as f64;
    let names = [
        (1, ["xrc.vm1", "xrc.node", "xrc.is.vm1", "xrc.is.node.vm1"]),
        (2, ["xrc.vm2", "xrc.node.vm2", "xrc.is.vm2", "xrc.is.node.vm2"]),
        (4, ["xrc.vm4", "xrc.node.vm4", "xrc.is.vm4", "xrc.is.node.vm4"]),
        (8, ["xrc.vm8", "xrc.node.vm8", "xrc.is.vm8", "xrc.is.node.vm8"]),
    ];
    // IS has the same peers as FT: all other processes.
    let mut of_both = |names: [&'static str; 4], each: f64| {
        for (name, count) in names.into_iter().zip([1, CORES, 1, CORES]) {
            ours.insert(name, each * count as f64);
        }
    };
    for (of_vm, names) in names {
        of_both(names, to_vms(of_vm));
    }
    let proof = NODES as f64;
    of_both(["xrc.proof", "xrc.node.proof", "xrc.is.proof", "xrc.is.node.proof"], proof);
    let native = ["xrc.native", "xrc.node.native", "xrc.is.native", "xrc.is.node.native"];
    of_both(native, proof - 1.0);
    ours.insert("xrc.fewer", to_vms(1) / proof);
    // The slides' formulas of memory leave out what is on the node itself.
    let of_node = |each: u64| ((NODES_OF_64K - 1) * CORES * each * QUEUE_PAIR_BYTES) as f64 / 1e6;
    ours.insert("xrc.memory", of_node(CORES));
    ours.insert("xrc.memory.proof", of_node(1));
}
