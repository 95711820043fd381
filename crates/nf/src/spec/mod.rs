//! Chain specs: the YAML a user writes, checked and turned into types.
