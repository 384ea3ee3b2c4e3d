// What a command tells people beside its result, on stderr.  The result itself goes to stdout, by
// fmt::print(), where what cannot be written is an error.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "src/plan/base/printable.h"

namespace paradyse::cli {

// In one piece, whoever writes beside it; lost where nobody can read it.  What a stranger named in
// it moves no cursor.
template <typename... Args>
void tell(fmt::format_string<Args...> text, Args&&... args) {
  const std::string all = printable(fmt::format(text, std::forward<Args>(args)...));
  std::fwrite(all.data(), 1, all.size(), stderr);
}

}  // namespace paradyse::cli
