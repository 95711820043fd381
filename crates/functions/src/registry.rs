//! List of all kinds of functions.

use crate::kind::FunctionKind;
use tailwater_api::schema::FunctionSchema;

/// All kinds, in the order in which errors and docs list them.
pub static KINDS: &[&FunctionKind] = &[
    &crate::acl::KIND,
    &crate::nat::KIND,
    &crate::load_balancer::KIND,
    &crate::accounting::KIND,
    &crate::url_filter::KIND,
    &crate::flow_stats::KIND,
    &crate::mirror::KIND,
    &crate::count::KIND,
    &crate::encrypt::KIND,
    &crate::forward::KIND,
    &crate::ip_forward::KIND,
    &crate::tunnel::KIND,
    &crate::policer::KIND,
    &crate::bpf_filter::KIND,
    &crate::xdp::KIND,
    &crate::dns_guard::KIND,
    &crate::ipsec::KIND,
    &crate::firewall::KIND,
    &crate::upf::KIND,
    &crate::classifier::KIND,
    &crate::synthetic::KIND,
    &crate::ids::KIND,
    &crate::wan_optimizer::KIND,
    &crate::library::LIBRARY,
    &crate::library::PROGRAM,
    &crate::wasm::KIND,
    &crate::external::KIND,
];

/// Names of all kinds, as written in YAML.
pub fn names() -> impl Iterator<Item = &'static str> + Clone {
    KINDS.iter().map(|kind| kind.name)
}

/// Schemas of all kinds.
pub fn schemas() -> Vec<FunctionSchema> {
    KINDS.iter().map(|kind| kind.schema()).collect()
}

/// Kind of this name.
pub fn kind(name: &str) -> Option<&'static FunctionKind> {
    KINDS.iter().copied().find(|kind| kind.name == name)
}
