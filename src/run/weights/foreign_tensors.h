// Files that are given for safetensors and plainly are something else.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace paradyse {

// What a file is that begins with these bytes ("is an alignment or sequences (FASTA, A3M)"); "": it
// may be safetensors, or nobody knows.
std::string foreign_tensors(std::string_view bytes);
// The same of a file; one without bytes "is empty".
std::string foreign_tensor_file(const std::filesystem::path& file);

}  // namespace paradyse
