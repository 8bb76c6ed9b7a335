//! The choice of the nodes and pools of a volume's copies: a pure function of what the registry
//! holds. Most space first, one copy for each place, and the same choice each time.

use std::collections::{BTreeMap, BTreeSet};

use registry::membership::{ClusterContents, KnownNode};
use registry::{PlacedCopy, PoolSpace, PresenceRecord};

/// Sets of nodes that are tried: each of eight copies on each of a hundred nodes without a conflict
/// are some hundred steps. Only places of several kinds that cross each other take more.
const STEPS_MAX: usize = 1 << 16;

/// A volume that needs places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementAsk {
    /// Its size.
    pub size_bytes: u64,
    /// Its copies.
    pub copies: usize,
    /// Nodes that are chosen already, in the order of the copies; without any all nodes are looked
    /// at.
    pub on: Vec<String>,
    /// The class of the pools; none: any.
    pub class: Option<String>,
    /// The only pool; none: any.
    pub pool: Option<String>,
    /// Kinds of places of which no two copies have the same.
    pub domains: Vec<String>,
    /// The pools may have promised more than they have.
    pub overcommits: bool,
    /// Nodes that have copies of the volume already: they get no other copy, and the places of
    /// present nodes among them are taken.
    pub beside: Vec<String>,
    /// The node among these with the copy that goes, and its places.
    pub instead: Option<String>,
}

/// A node that may have a copy.
#[derive(Clone, Debug)]
struct Candidate<'c> {
    node: &'c str,
    pool: &'c str,
    room_bytes: u64,
    /// Its place of each wanted kind.
    places: Vec<&'c str>,
}

/// Chooses the nodes and pools of a volume's copies. `size` shows bytes to people.
///
/// # Errors
/// Why there is no choice, with each node's reason and numbers.
pub fn place(
    contents: &ClusterContents,
    ask: &PlacementAsk,
    size: fn(u64) -> String,
) -> Result<Vec<PlacedCopy>, String> {
    let wanted = |node: &&KnownNode| ask.on.is_empty() || ask.on.contains(&node.record.name);
    let known = |name: &&String| contents.nodes.iter().any(|node| node.record.name == **name);
    if let Some(unknown) = ask.on.iter().find(|name| !known(name)) {
        return Err(format!("the cluster has no node {unknown:?}"));
    }
    let promised = promised(contents);
    let (mut candidates, mut reasons) = (Vec::new(), Vec::new());
    for node in contents.nodes.iter().filter(wanted) {
        match candidate(node, ask, (&promised, size)) {
            Ok(candidate) => candidates.push(candidate),
            Err(why) => reasons.push(format!("{}: {why}", node.record.name)),
        }
    }
    reasons.sort();
    match ask.on.is_empty() {
        true => candidates
            .sort_by(|a, b| b.room_bytes.cmp(&a.room_bytes).then_with(|| a.node.cmp(b.node))),
        false => candidates.sort_by_key(|it| ask.on.iter().position(|name| name == it.node)),
    }
    let refused = |why: String| {
        let reasons =
            if reasons.is_empty() { String::new() } else { format!("; {}", reasons.join("; ")) };
        Err(format!(
            "{} copies of {} cannot be placed: {why}{reasons}",
            ask.copies,
            size(ask.size_bytes)
        ))
    };
    if candidates.len() < ask.copies {
        let able: Vec<_> = candidates.iter().map(|it| it.node).collect();
        let able = if able.is_empty() { "none".to_owned() } else { able.join(", ") };
        return refused(format!("{} nodes can have a copy ({able})", candidates.len()));
    }
    let taken = taken(contents, ask);
    let mut search = Search { candidates: &candidates, taken, chosen: Vec::new(), steps: 0 };
    if !search.choose(0, ask.copies) {
        let places = candidates.iter().map(|it| format!("{} in {}", it.node, it.places.join(", ")));
        let places: Vec<_> = places.collect();
        return refused(format!(
            "no {} of these nodes are in different places of each kind ({}): {}",
            ask.copies,
            ask.domains.join(", "),
            places.join("; ")
        ));
    }
    let copy = |at: &usize| PlacedCopy::new(candidates[*at].node, candidates[*at].pool);
    Ok(search.chosen.iter().map(copy).collect())
}

/// Checks a copy that is chosen already, by what the volume asks for.
///
/// # Errors
/// Why its node or its pool cannot have it.
pub fn check_copy(
    contents: &ClusterContents,
    ask: &PlacementAsk,
    copy: &PlacedCopy,
    size: fn(u64) -> String,
) -> Result<(), String> {
    let node = contents.nodes.iter().find(|node| node.record.name == copy.node);
    let node = node.ok_or_else(|| format!("the cluster has no node {:?}", copy.node))?;
    let pool = Some(copy.pool.clone());
    let ask = PlacementAsk { pool, beside: Vec::new(), ..ask.clone() };
    let checked = candidate(node, &ask, (&promised(contents), size)).map(drop);
    checked.map_err(|why| format!("node {}, pool {}: {why}", copy.node, copy.pool))
}

/// Bytes that pools have promised to placed volumes, by node and pool.
pub(crate) type PromisedBytes<'p> = BTreeMap<(&'p str, &'p str), u64>;

pub(crate) fn promised(contents: &ClusterContents) -> PromisedBytes<'_> {
    let mut promised = BTreeMap::new();
    for (_, placement) in &contents.placements {
        for copy in &placement.copies {
            let bytes: &mut u64 = promised.entry((&*copy.node, &*copy.pool)).or_default();
            *bytes = bytes.saturating_add(placement.size_bytes);
        }
    }
    promised
}

/// Bytes of a pool of a node that are free, and not promised to volumes.
pub(crate) fn room((node, pool): (&str, &PoolSpace), promised: &PromisedBytes<'_>) -> u64 {
    let promised = promised.get(&(node, &*pool.name)).copied().unwrap_or(0);
    pool.free_bytes.min(pool.size_bytes.saturating_sub(promised))
}

fn candidate<'c>(
    node: &'c KnownNode,
    ask: &PlacementAsk,
    (promised, size): (&PromisedBytes<'_>, fn(u64) -> String),
) -> Result<Candidate<'c>, String> {
    let name = &*node.record.name;
    if ask.beside.iter().any(|it| it == name) {
        return Err("it has a copy".to_owned());
    }
    let Some(presence) = &node.presence else { return Err("it is away".to_owned()) };
    if node.record.key.is_none() {
        return Err("it has no key, and copies need sealed sessions".to_owned());
    }
    if presence.addresses.is_empty() {
        return Err("it has no address (\"listen\")".to_owned());
    }
    let (pool, room_bytes) = roomiest((name, presence), ask, (promised, size))?;
    let place = |kind: &String| {
        let place = presence.domain.get(kind).map(String::as_str);
        place.ok_or_else(|| format!("its section [cluster] has no \"domain\" of kind {kind:?}"))
    };
    let places = ask.domains.iter().map(place).collect::<Result<_, _>>()?;
    Ok(Candidate { node: name, pool, room_bytes, places })
}

/// The pool with the most room: room is free space that is not promised to other volumes.
fn roomiest<'c>(
    (node, presence): (&str, &'c PresenceRecord),
    ask: &PlacementAsk,
    (promised, size): (&PromisedBytes<'_>, fn(u64) -> String),
) -> Result<(&'c str, u64), String> {
    let is_of_class = |class: &Option<String>| ask.class.is_none() || *class == ask.class;
    let is_wanted = |name: &String| ask.pool.as_ref().is_none_or(|wanted| wanted == name);
    let named = presence.pools.iter().filter(|pool| is_wanted(&pool.name));
    let fitting = named.filter(|pool| is_of_class(&pool.class));
    let sound = fitting.clone().filter(|pool| pool.problem.is_empty() && pool.size_bytes > 0);
    let rooms = sound.map(|pool| match ask.overcommits {
        false => (room((node, pool), promised), pool),
        true => (pool.free_bytes, pool),
    });
    let best = rooms.max_by(|(a, x), (b, y)| a.cmp(b).then_with(|| y.name.cmp(&x.name)));
    match best {
        Some((room, pool)) if room >= ask.size_bytes || ask.overcommits => Ok((&*pool.name, room)),
        Some((room, pool)) => Err(format!(
            "pool {} has {} that are free and not promised to other volumes",
            pool.name,
            size(room)
        )),
        None => Err(match (fitting.count(), &ask.class) {
            (0, Some(class)) => format!("it has no pool of class {class:?}"),
            (0, None) => "it has no pool".to_owned(),
            (_, _) => "its pools take no writes".to_owned(),
        }),
    }
}

/// The first set of candidates in their order of which no two have a place in common.
struct Search<'s, 'c> {
    candidates: &'s [Candidate<'c>],
    /// The places of copies that there are, of each wanted kind.
    taken: Vec<Vec<&'c str>>,
    chosen: Vec<usize>,
    steps: usize,
}

impl Search<'_, '_> {
    /// Chooses so many more candidates, from this candidate on.
    fn choose(&mut self, from: usize, more: usize) -> bool {
        if more == 0 {
            return true;
        }
        for at in from..self.candidates.len() {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return false;
            }
            let places = &self.candidates[at].places;
            let shares =
                |theirs: &Vec<&str>| places.iter().zip(theirs).any(|(mine, theirs)| mine == theirs);
            let chosen = self.chosen.iter().map(|other| &self.candidates[*other].places);
            if chosen.chain(&self.taken).any(shares) {
                continue;
            }
            self.chosen.push(at);
            if self.choose(at + 1, more - 1) {
                return true;
            }
            self.chosen.pop();
        }
        false
    }
}

/// The places of present nodes that have copies already, and keep them.
fn taken<'c>(contents: &'c ClusterContents, ask: &PlacementAsk) -> Vec<Vec<&'c str>> {
    let keeps = |node: &&KnownNode| {
        let name = &node.record.name;
        ask.beside.contains(name) && ask.instead.as_ref() != Some(name)
    };
    let domains =
        contents.nodes.iter().filter(keeps).filter_map(|it| Some(&it.presence.as_ref()?.domain));
    let place =
        |domain: &'c BTreeMap<String, String>, kind| domain.get(kind).map_or("", String::as_str);
    domains.map(|domain| ask.domains.iter().map(|kind| place(domain, kind)).collect()).collect()
}

/// Nodes that are in a list twice.
pub fn twice(nodes: &[String]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    nodes.iter().find(|node| !seen.insert(*node))
}

#[cfg(test)]
mod tests {
    use random::Random;
    use registry::{NodeRecord, PlacementRecord, Stamp};

    use super::*;

    fn node(name: &str, free: u64, rack: &str) -> KnownNode {
        let key = Some("key".to_owned());
        let record = NodeRecord { name: name.to_owned(), key, joined_s: 1, token: String::new() };
        let pool = PoolSpace { free_bytes: free, ..PoolSpace::new("fast", 1600, 0) };
        let presence = PresenceRecord {
            addresses: vec!["10.0.0.1:4870".to_owned()],
            pools: vec![PoolSpace { class: Some("ssd".to_owned()), ..pool }],
            domain: [("rack".to_owned(), rack.to_owned())].into(),
            ..PresenceRecord::default()
        };
        KnownNode { record, presence: Some(presence) }
    }

    fn contents(nodes: Vec<KnownNode>) -> ClusterContents {
        ClusterContents {
            stamp: Stamp { store: 1, revision: 1 },
            cluster: None,
            nodes,
            tokens: Vec::new(),
            volumes: Vec::new(),
            placements: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    fn chosen(all: &ClusterContents, ask: &PlacementAsk) -> Result<Vec<PlacedCopy>, String> {
        place(all, ask, |bytes| format!("{bytes} bytes"))
    }

    fn two(size_bytes: u64) -> PlacementAsk {
        PlacementAsk { size_bytes, copies: 2, ..PlacementAsk::default() }
    }

    fn names(placed: Result<Vec<PlacedCopy>, String>) -> Result<Vec<String>, String> {
        placed.map(|copies| copies.into_iter().map(|copy| copy.node).collect())
    }

    #[test]
    fn the_nodes_with_the_most_room_have_the_copies_unless_places_forbid_it() {
        let all = contents(vec![
            node("io1", 800, "r1"),
            node("io2", 900, "r1"),
            node("io3", 700, "r2"),
            node("io4", 700, "r2"),
        ]);
        assert_eq!(names(chosen(&all, &two(100))).unwrap(), ["io2", "io1"]);
        let rack = PlacementAsk { domains: vec!["rack".to_owned()], ..two(100) };
        assert_eq!(names(chosen(&all, &rack)).unwrap(), ["io2", "io3"]);
        let on = ["io4", "io1"].map(str::to_owned).to_vec();
        assert_eq!(names(chosen(&all, &PlacementAsk { on: on.clone(), ..two(1) })).unwrap(), on);
        let three = PlacementAsk { copies: 3, ..rack };
        let error = chosen(&all, &three).unwrap_err();
        assert!(error.contains("no 3 of these nodes are in different places"), "{error}");
        assert!(error.contains("io1 in r1"), "{error}");
    }

    #[test]
    fn a_node_that_cannot_have_a_copy_is_named_with_its_reason() {
        let mut all = contents(
            ["io1", "io2", "io3", "io4", "io5", "io6", "io7"].map(|it| node(it, 800, "r1")).into(),
        );
        fn of(all: &mut ClusterContents, at: usize) -> &mut PresenceRecord {
            all.nodes[at].presence.as_mut().unwrap()
        }
        all.nodes[0].presence = None;
        all.nodes[1].record.key = None;
        of(&mut all, 2).addresses.clear();
        of(&mut all, 3).pools[0].class = None;
        of(&mut all, 4).pools[0].problem = "it is full".to_owned();
        of(&mut all, 5).domain.clear();
        of(&mut all, 6).pools[0].free_bytes = 5;
        let ask = PlacementAsk {
            class: Some("ssd".to_owned()),
            domains: vec!["rack".to_owned()],
            ..two(100)
        };
        let error = chosen(&all, &ask).unwrap_err();
        for part in [
            "2 copies of 100 bytes",
            "0 nodes can have a copy (none)",
            "io1: it is away",
            "io2: it has no key",
            "io3: it has no address",
            "io4: it has no pool of class \"ssd\"",
            "io5: its pools take no writes",
            "io6: its section [cluster] has no \"domain\" of kind \"rack\"",
            "io7: pool fast has 5 bytes",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let unknown = PlacementAsk { on: vec!["io9".to_owned()], ..two(1) };
        assert!(chosen(&all, &unknown).unwrap_err().contains("no node \"io9\""));
    }

    #[test]
    fn promised_space_is_not_promised_twice_unless_that_is_wanted() {
        let mut all = contents(vec![node("io1", 1600, "r1"), node("io2", 1600, "r2")]);
        let copies = chosen(&all, &two(1000)).unwrap();
        let placed = PlacementRecord { size_bytes: 1000, copies, ..PlacementRecord::default() };
        all.placements.push(("alice".to_owned(), placed));
        let error = chosen(&all, &two(1000)).unwrap_err();
        assert!(error.contains("fast has 600 bytes"), "{error}");
        assert!(chosen(&all, &two(600)).is_ok());
        assert!(chosen(&all, &PlacementAsk { overcommits: true, ..two(9000) }).is_ok());
        // Any client can write any numbers.
        all.placements[0].1.size_bytes = u64::MAX;
        all.placements.push(all.placements[0].clone());
        assert!(chosen(&all, &two(1)).is_err());
    }

    /// A volume that begins as a snapshot has its first copy beside that, and the rules are the
    /// same for it.
    #[test]
    fn a_copy_that_is_chosen_already_needs_room_and_the_class_as_others_do() {
        let all = contents(vec![node("io1", 800, "r1")]);
        let check = |ask: &PlacementAsk, pool: &str| {
            check_copy(&all, ask, &PlacedCopy::new("io1", pool), |bytes| format!("{bytes} bytes"))
        };
        let beside = PlacementAsk { beside: vec!["io1".to_owned()], ..two(800) };
        assert_eq!(check(&beside, "fast"), Ok(()));
        let told = check(&two(801), "fast").unwrap_err();
        assert!(told.starts_with("node io1, pool fast: pool fast has 800 bytes"), "{told}");
        assert_eq!(check(&PlacementAsk { overcommits: true, ..two(801) }, "fast"), Ok(()));
        let hdd = PlacementAsk { class: Some("hdd".to_owned()), ..two(1) };
        assert!(check(&hdd, "fast").unwrap_err().contains("no pool of class \"hdd\""));
        assert!(check(&two(1), "slow").unwrap_err().contains("it has no pool"));
    }

    /// In each cluster a choice has different nodes in different places with room, and does not
    /// depend on the order of the nodes; where a search of all pairs finds
    /// a choice there is a choice.
    #[test]
    fn seeds_of_clusters_are_placed_as_the_rules_say() {
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let count = random.between(0, 7);
            let nodes: Vec<_> = (0..count)
                .map(|at| {
                    let rack = format!("r{}", random.between(0, 3));
                    let mut node = node(&format!("io{at}"), random.between(0, 1600), &rack);
                    let host = format!("h{}", random.between(0, 4));
                    let presence = node.presence.as_mut().unwrap();
                    presence.domain.insert("host".to_owned(), host);
                    node
                })
                .collect();
            let domains = ["rack", "host"].map(str::to_owned);
            let kinds = random.between(0, 2) as usize;
            let ask = PlacementAsk { domains: domains[..kinds].to_vec(), ..two(700) };
            let all = contents(nodes.clone());
            let fits =
                |a: &KnownNode| a.presence.as_ref().unwrap().pools[0].free_bytes >= ask.size_bytes;
            let apart = |a: &KnownNode, b: &KnownNode| {
                let at = |it: &KnownNode, kind: &String| {
                    it.presence.as_ref().unwrap().domain[kind].clone()
                };
                ask.domains.iter().all(|kind| at(a, kind) != at(b, kind))
            };
            let pairs = nodes
                .iter()
                .enumerate()
                .flat_map(|(at, a)| nodes[at + 1..].iter().map(move |b| (a, b)));
            let exists = pairs.clone().any(|(a, b)| fits(a) && fits(b) && apart(a, b));
            let placed = names(chosen(&all, &ask));
            assert_eq!(placed.is_ok(), exists, "seed {seed}: {placed:?}");
            if let Ok(placed) = &placed {
                let of =
                    |name: &String| nodes.iter().find(|node| node.record.name == *name).unwrap();
                let [a, b] = [of(&placed[0]), of(&placed[1])];
                assert!(fits(a) && fits(b) && apart(a, b) && placed[0] != placed[1], "seed {seed}");
            }
            let mut turned = nodes.clone();
            turned.reverse();
            assert_eq!(names(chosen(&contents(turned), &ask)), placed, "seed {seed}");
        }
    }
}
