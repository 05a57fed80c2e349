// Takes the noise out of a WAV file of 16-bit samples, frame by frame, as an audio plug-in would.
// Usage: denoiser layers.safetensors noisy.wav clean.wav

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <onegru.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// The bytes of a WAV file, and where its samples are: all between is kept as it is.
struct Wav {
  std::vector<char> bytes;
  std::size_t begin = 0, size = 0;

  explicit Wav(const char* path) {
    std::ifstream file(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
    const auto word = [&](std::size_t at) {
      std::uint32_t value = 0;
      if (at + 4 > bytes.size()) throw std::runtime_error(std::string(path) + ": not a WAV file, or truncated");
      std::memcpy(&value, &bytes[at], 4);
      return value;
    };
    if (word(0) != 0x46464952 || word(8) != 0x45564157)
      throw std::runtime_error(std::string(path) + ": not a WAV file");
    for (begin = 12; word(begin) != 0x61746164; begin += 8 + std::size_t{word(begin + 4)} + (word(begin + 4) & 1)) {
      if (word(begin) == 0x20746d66 && (word(begin + 8) != 0x10001 || word(begin + 20) >> 16 != 16)) {  // "fmt "
        throw std::runtime_error(std::string(path) + ": must have one channel of 16-bit integers");
      }
    }
    size = word(begin + 4);
    begin += 8;
    if (size > bytes.size() - begin) throw std::runtime_error(std::string(path) + ": truncated");
  }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: denoiser layers.safetensors noisy.wav clean.wav");
  const std::vector<onegru::Layer> layers = onegru::Layer::OpenAll(argv[1]);
  std::vector<onegru::Stream> streams(layers.begin(), layers.end());
  std::vector<std::vector<float>> frames{
      std::vector<float>(layers.front().spec().input_size)};  // of each layer, X to Y
  for (const onegru::Layer& layer : layers) frames.emplace_back(layer.spec().hidden_size);

  Wav wav(argv[2]);
  const std::size_t frame = frames.front().size();
  std::vector<std::int16_t> samples(frame);
  for (std::size_t at = 0; at + 2 * frame <= wav.size; at += 2 * frame) {  // what is left at the end stays as it is
    std::memcpy(samples.data(), &wav.bytes[wav.begin + at], 2 * frame);
    for (std::size_t i = 0; i < frame; ++i) frames.front()[i] = static_cast<float>(samples[i]) / 32768;
    for (std::size_t i = 0; i < streams.size(); ++i) streams[i].Step(frames[i], frames[i + 1]);
    for (std::size_t i = 0; i < frame; ++i)
      samples[i] = static_cast<std::int16_t>(std::lrint(32767 * frames.back()[i]));
    std::memcpy(&wav.bytes[wav.begin + at], samples.data(), 2 * frame);
  }
  if (!std::ofstream(argv[3], std::ios::binary)
           .write(wav.bytes.data(), static_cast<std::streamsize>(wav.bytes.size()))) {
    throw std::runtime_error(std::string(argv[3]) + ": cannot be written");
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "denoiser: %s\n", error.what());
  return 1;
}
