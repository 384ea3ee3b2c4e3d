// Texts of other processes, as they may be printed.
#pragma once

#include <string>
#include <string_view>

namespace paradyse::rendezvous {

// printable() of src/plan/base.  Lines after the first are indented, so that none looks like a
// message of this process.  More than `most` bytes are cut.
std::string printable(std::string_view text, std::size_t most = 8192);

}  // namespace paradyse::rendezvous
