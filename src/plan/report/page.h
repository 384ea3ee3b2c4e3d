// The page of a report: a template (src/plan/report/page/, which the build puts into the library)
// and the data that its script draws, as one block of JSON.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace paradyse {

// One self-contained HTML page, readable without a network and in light and dark.  `data`: what
// page.js draws; numbers that are none are null.
std::string page_of(const nlohmann::ordered_json& data);

// Puts the page into `file`, whole or not at all.  Throws std::invalid_argument for a file that is
// there and is no such page, and for a folder that is not there.
void write_page(const nlohmann::ordered_json& data, const std::filesystem::path& file);

}  // namespace paradyse
