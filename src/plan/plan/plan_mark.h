// How a plan file begins, by which one is told from a file of somebody else's: why_not_ours() in
// src/plan/base/disk_file.h.
#pragma once

#include <string_view>

namespace paradyse {

inline constexpr std::string_view kPlanMark = R"({"format":"paradyse-plan",)";

}  // namespace paradyse
