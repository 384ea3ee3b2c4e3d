// Paths into a plan file for messages: micro_batches[1].groups[0].program, programs["a b"][2].
#pragma once

#include <cstddef>
#include <string>

namespace paradyse {

// The path of member `key` of the object at `path`; quoted where it is no plain name.
std::string path_to(const std::string& path, const std::string& key);

// The path of element `index` of the list at `path`.
std::string path_to(const std::string& path, std::size_t index);

}  // namespace paradyse
