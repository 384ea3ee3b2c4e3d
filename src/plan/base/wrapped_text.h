// Text in lines that end between words.
#pragma once

#include <cstddef>
#include <string>

namespace paradyse {

// Lines of at most `width` columns, each begun with `start` and ended with '\n'; a longer word has
// a line of its own.
std::string wrapped_text(const std::string& text, const std::string& start, std::size_t width);

}  // namespace paradyse
