// Numbers as people read them: the one place that prints shares, and counts of things.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace paradyse {

// With so many decimals; what rounds to nothing is 0, not -0; what is no number is a dash.
std::string decimals_text(double value, int digits);
// "12.3 %"
std::string percent_text(double share, int digits = 1);
// "+12.3 %", "-4.0 %", "0.0 %"
std::string signed_percent_text(double share, int digits = 1);
// "1 document", "3 documents"
std::string counted(std::int64_t number, const std::string& thing);

// What people write for counts of tokens: "32768", "32K" (of 1,024), "1M" (of 1,048,576); none: it
// is no whole number, or is none that 64 bits have.
std::optional<std::int64_t> whole_number(const std::string& text);

}  // namespace paradyse
