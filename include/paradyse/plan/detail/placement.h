// Where the streams of a group lie, as plans say it: for each axis of the group's mesh "S(dim)",
// the dim that is cut over it, or "R", copies.
//
// Ranks of a mesh are numbered row by row.  A dim is cut evenly, but for that of the tokens, which
// is cut like the group's documents.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/detail/layout.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/program.h"

namespace paradyse {

using Placement = std::vector<std::string>;     // by axis
using Layouts = std::map<std::string, Layout>;  // by stream

// The dim that each axis cuts; "": none.  Throws std::invalid_argument for a text that is neither.
std::vector<std::string> cut_dims(const Placement& placement);
// "S(frames), R".
std::string to_string(const Placement& placement);

// With its home dim cut over all ranks, or copies where it has none.  Throws std::invalid_argument
// for a dim that has no size: "tokens" has that of the documents together, "batch" their number,
// others stand in Documents::dims.
Layout home(const Stream& stream, const Documents& documents);

// Throws std::invalid_argument, too, like cut_dims(), and for another number of axes or a dim that
// the stream has not got or that two axes cut.
Layout placed(const Stream& stream, const Documents& documents, const Placement& placement);

}  // namespace paradyse
