// What a stranger named, as a terminal may be given it.
#pragma once

#include <string>
#include <string_view>

namespace paradyse {

// With control characters, marks that turn the direction of writing and bytes that are no UTF-8 as
// \xNN, so that no name moves the cursor, hides a line or sends commands to a terminal.  Ends of
// lines and tabs stay.
std::string printable(std::string_view text);

}  // namespace paradyse
