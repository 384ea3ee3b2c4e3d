// What is told of the documents that were read, and of those that were not.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/run/data.h"

namespace paradyse {

// Sentences, the first beginning with "data: "; `key`: what they are called instead of that.
std::vector<std::string> data_lines(const DataCounts& counts, const std::string& key = "data");

// "1 hidden (.x), 2 binary (y)": how many, why, and the first of them.
std::string left_out_text(const std::map<std::string, LeftOut>& left_out);

nlohmann::ordered_json json_of(const DataCounts& counts);

}  // namespace paradyse
