// What is told of the documents that were read, and of those that were not.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/run/data.h"

namespace paradyse {

// Sentences, the first beginning with "data: "; `key`: what they are called instead of that.
std::vector<std::string> data_lines(const DataCounts& counts, const std::string& key = "data");

nlohmann::ordered_json json_of(const DataCounts& counts);

}  // namespace paradyse
