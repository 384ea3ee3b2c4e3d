// Files that are given for alignments and are something else.
#pragma once

#include <string>
#include <string_view>

namespace paradyse {

// What a file is that begins with these bytes, and what to do ("is compressed (gzip), which is not
// read; unpack it: gunzip FILE"); "": it may be an alignment.
std::string foreign_alignment(std::string_view bytes);

}  // namespace paradyse
