// Numbers and names as the page of a report shows them, in HTML and SVG alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace paradyse {

// With &, <, >, " and ' as entities: safe between tags and in attributes.
std::string escaped(const std::string& text);

// The first `letters` of a UTF-8 text, the last one an ellipsis where it is longer.
std::string shortened(const std::string& text, std::size_t letters);

// With this many significant digits, thousands apart: "3,118", "12.35", "0.0123"; NaN: a dash.
std::string figures(double value, int digits = 4);

// With this many decimals, thousands apart.
std::string decimals(double value, int decimals);

// "329,728"
std::string whole(std::int64_t value);

// "4K" = 4,096 and "1M" = 1,048,576 where the number is so many, otherwise all its digits.
std::string tokens_text(std::int64_t tokens);

// "4.2 %"; NaN: a dash.
std::string percent(double part);
// "+4.2 %"
std::string signed_percent(double part);

}  // namespace paradyse
