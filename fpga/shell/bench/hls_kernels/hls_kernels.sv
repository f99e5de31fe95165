// A device in whose slots HLS kernels are, in C simulation (hls_kernel).
//
// The ports are those of `device` without the kernels'; it has its own parameters there. They stand
// here again because Verilator takes no interface at the top, gives C++ a structure as bits without
// names, and refuses kernels that are bound into `device`, as they would drive its inputs.

`default_nettype none

module hls_kernels #(
  localparam int CARDS = 2,
  localparam int UNIT_BITS = 2,
  localparam int BUFFER_BITS = 7,
  localparam int POSITION_BITS = 5,
  localparam int EXTENT_LINE_BITS = 6,
  localparam int LINE_BITS = 10
) (
  input  wire  logic                                      clk,
  input  wire  logic                                      reset,

  // Privileged: extents and files of a card.
  input  wire  logic [CARDS-1:0]                          load_extent,
  input  wire  logic [EXTENT_LINE_BITS-1:0]                extent_line,
  input  wire  shell_pkg::extent_t                        extent,
  input  wire  logic [CARDS-1:0]                          load_segment,
  input  wire  logic [LINE_BITS-1:0]                      load_line,
  input  wire  logic [shell_pkg::NUMBER_BITS-1:0]         load_number,
  input  wire  logic [CARDS-1:0]                          load_file,
  input  wire  logic [shell_pkg::HANDLE_BITS-1:0]         load_handle,
  input  wire  logic [LINE_BITS-1:0]                      load_first,
  input  wire  logic [shell_pkg::OFFSET_BITS-1:0]         load_pages,

  // The host.
  output logic                                            free_read_valid,
  input  wire  logic                                      free_read_ready,
  output logic [BUFFER_BITS-1:0]                          free_read,
  input  wire  logic                                      give_back_valid,
  input  wire  logic [BUFFER_BITS-1:0]                    give_back,
  output logic                                            free_write_valid,
  input  wire  logic                                      free_write_ready,
  output logic [BUFFER_BITS-1:0]                          free_write,
  // Units: 0 is plain I/O, 1 reads of status areas, 2 on the cards' slots. A request of unit 0 is
  // {card, buffer, command_t}, in the lowest bits; others are a work_t, of which a read of a status
  // area has endpoint and line.
  input  wire  logic                                      host_valid,
  output logic                                            host_ready,
  input  wire  logic [UNIT_BITS-1:0]                      host_unit,
  input  wire  shell_pkg::work_t                          host_request,
  output logic                                            answer_valid,
  input  wire  logic                                      answer_ready,
  output shell_pkg::outcome_t                             answer,
  output logic                                            over_valid,
  input  wire  logic                                      over_ready,
  output logic [shell_pkg::ENDPOINT_BITS-1:0]             over_endpoint,
  output logic [shell_pkg::SEQUENCE_BITS-1:0]             over_sequence,
  output logic                                            completion_valid,
  input  wire  logic                                      completion_ready,
  output logic                                            completion_is_read,
  output logic [BUFFER_BITS-1:0]                          completion_buffer,
  output logic [shell_pkg::STATUS_BITS-1:0]               completion_status,
  output logic                                            store_valid,
  input  wire  logic                                      store_ready,
  output logic [BUFFER_BITS-1:0]                          store_buffer,
  output logic [POSITION_BITS-1:0]                        store_position,
  output logic [shell_pkg::DATA_BITS-1:0]                 store_data,
  output logic                                            store_is_last,
  output logic                                            fetch_valid,
  input  wire  logic                                      fetch_ready,
  output logic [BUFFER_BITS-1:0]                          fetch_buffer,
  output logic [POSITION_BITS-1:0]                        fetch_position,
  input  wire  logic                                      data_valid,
  output logic                                            data_ready,
  input  wire  logic [shell_pkg::DATA_BITS-1:0]           data,

  // Which kernels take and give nothing in this clock; which are at work; which have no room for
  // the beat that has come.
  input  wire  logic [CARDS-1:0]                          is_paused,
  output logic [CARDS-1:0]                                is_at_work,
  output logic [CARDS-1:0]                                is_full,

  // What the slots' kernels find, for the host.
  output logic [CARDS-1:0]                                out_valid,
  input  wire  logic [CARDS-1:0]                          out_ready,
  output logic [CARDS*shell_pkg::ENDPOINT_BITS-1:0]       out_endpoint,
  output logic [CARDS*shell_pkg::AREA_BITS-1:0]           out_line,
  output logic [CARDS*shell_pkg::FOUND_BITS-1:0]          out,

  // In-store processors that are the splitters' user 2; they must take what they are given.
  input  wire  logic [CARDS-1:0]                          raw_valid,
  output logic [CARDS-1:0]                                raw_ready,
  input  wire  logic [CARDS*shell_pkg::COMMAND_BITS-1:0]  raw_command,
  input  wire  logic [CARDS*shell_pkg::USER_TAG_BITS-1:0] raw_tag,
  output logic [CARDS-1:0]                                raw_read_valid,
  output logic [CARDS*shell_pkg::USER_TAG_BITS-1:0]       raw_read_tag,
  output logic [CARDS*shell_pkg::BURST_BITS-1:0]          raw_read_burst,
  output logic [CARDS-1:0]                                raw_ack_valid,
  output logic [CARDS*shell_pkg::USER_TAG_BITS-1:0]       raw_ack_tag,
  output logic [CARDS*shell_pkg::STATUS_BITS-1:0]         raw_ack_status,

  // The cards.
  output logic [CARDS-1:0]                                card_valid,
  input  wire  logic [CARDS-1:0]                          card_ready,
  output logic [CARDS*shell_pkg::COMMAND_BITS-1:0]        card_command,
  output logic [CARDS*shell_pkg::TAG_BITS-1:0]            card_tag,
  input  wire  logic [CARDS-1:0]                          read_valid,
  output logic [CARDS-1:0]                                read_ready,
  input  wire  logic [CARDS*shell_pkg::TAG_BITS-1:0]      read_tag,
  input  wire  logic [CARDS*shell_pkg::BURST_BITS-1:0]    read_burst,
  input  wire  logic [CARDS-1:0]                          request_valid,
  output logic [CARDS-1:0]                                request_ready,
  input  wire  logic [CARDS*shell_pkg::TAG_BITS-1:0]      request_tag,
  output logic [CARDS-1:0]                                write_valid,
  input  wire  logic [CARDS-1:0]                          write_ready,
  output logic [CARDS*shell_pkg::TAG_BITS-1:0]            write_tag,
  output logic [CARDS*shell_pkg::BURST_BITS-1:0]          write_burst,
  input  wire  logic [CARDS-1:0]                          ack_valid,
  output logic [CARDS-1:0]                                ack_ready,
  input  wire  logic [CARDS*shell_pkg::TAG_BITS-1:0]      ack_tag,
  input  wire  logic [CARDS*shell_pkg::STATUS_BITS-1:0]   ack_status,

  // What software reads: a user of a card sends data that no card has asked for; a request is for
  // a unit that there is not.
  output logic [CARDS-1:0]                                is_stray,
  output logic                                            is_unknown
);

  localparam int PARAMETER_BITS = shell_pkg::PARAMETER_BITS;
  localparam int OFFSET_BITS = shell_pkg::OFFSET_BITS;
  localparam int DATA_BITS = shell_pkg::DATA_BITS;
  localparam int FOUND_BITS = shell_pkg::FOUND_BITS;
  localparam int RESULT_BITS = shell_pkg::RESULT_BITS;
  localparam int BEAT_BITS = shell_pkg::BEAT_BITS;
  localparam int BEAT_BYTES = shell_pkg::BEAT_BYTES;
  localparam int KERNEL_TAG_BITS = shell_pkg::KERNEL_TAG_BITS;

  logic [CARDS-1:0]                start_valid;
  logic [CARDS-1:0]                start_ready;
  logic [CARDS*PARAMETER_BITS-1:0] start_parameter;
  logic [CARDS*OFFSET_BITS-1:0]    start_length;
  logic [CARDS-1:0]                word_valid;
  logic [CARDS-1:0]                word_ready;
  logic [CARDS*DATA_BITS-1:0]      word;
  logic [CARDS*OFFSET_BITS-1:0]    word_page;
  logic [CARDS-1:0]                word_is_last;
  logic [CARDS-1:0]                is_over;
  logic [CARDS-1:0]                found_valid;
  logic [CARDS-1:0]                found_ready;
  logic [CARDS*FOUND_BITS-1:0]     found;
  logic [CARDS-1:0]                result_valid;
  logic [CARDS-1:0]                result_ready;
  logic [CARDS*RESULT_BITS-1:0]    result;

  device #(
    .CARDS(CARDS)
  ) device (
    .*
  );

  for (genvar c = 0; c < CARDS; c++) begin : slots
    logic                       kernel_valid;
    logic                       kernel_ready;
    logic                       ended_valid;
    logic                       ended_ready;
    logic                       in_valid;
    logic                       in_ready;
    logic [BEAT_BITS-1:0]       in_data;
    logic [BEAT_BYTES-1:0]      in_keep;
    logic [KERNEL_TAG_BITS-1:0] in_tag;
    logic                       in_is_last;
    logic                       beat_valid;
    logic                       beat_ready;
    logic [BEAT_BITS-1:0]       beat_data;
    logic [BEAT_BYTES-1:0]      beat_keep;
    logic [KERNEL_TAG_BITS-1:0] beat_tag;
    logic                       beat_is_last;

    assign is_full[c] = in_valid && !in_ready && !is_paused[c];

    kernel_adapter adapter (
      .clk,
      .reset,
      .start_valid(start_valid[c]),
      .start_ready(start_ready[c]),
      .start_length(start_length[OFFSET_BITS*c +: OFFSET_BITS]),
      .word_valid(word_valid[c]),
      .word_ready(word_ready[c]),
      .word(word[DATA_BITS*c +: DATA_BITS]),
      .word_page(word_page[OFFSET_BITS*c +: OFFSET_BITS]),
      .word_is_last(word_is_last[c]),
      .is_over(is_over[c]),
      .found_valid(found_valid[c]),
      .found_ready(found_ready[c]),
      .found(found[FOUND_BITS*c +: FOUND_BITS]),
      .result_valid(result_valid[c]),
      .result_ready(result_ready[c]),
      .result(result[RESULT_BITS*c +: RESULT_BITS]),
      .kernel_valid,
      .kernel_ready,
      .ended_valid,
      .ended_ready,
      .in_valid,
      .in_ready,
      .in_data,
      .in_keep,
      .in_tag,
      .in_is_last,
      .out_valid(beat_valid),
      .out_ready(beat_ready),
      .out_data(beat_data),
      .out_keep(beat_keep),
      .out_tag(beat_tag),
      .out_is_last(beat_is_last)
    );

    hls_kernel #(
      .SLOT(c)
    ) kernel (
      .clk,
      .is_paused(is_paused[c]),
      .start_valid(kernel_valid),
      .start_ready(kernel_ready),
      .start_parameter(start_parameter[PARAMETER_BITS*c +: PARAMETER_BITS]),
      .start_packets(start_length[OFFSET_BITS*c +: OFFSET_BITS]),
      .ended_valid,
      .ended_ready,
      .s_valid(in_valid),
      .s_ready(in_ready),
      .s_data(in_data),
      .s_keep(in_keep),
      .s_tag(in_tag),
      .s_is_last(in_is_last),
      .m_valid(beat_valid),
      .m_ready(beat_ready),
      .m_data(beat_data),
      .m_keep(beat_keep),
      .m_tag(beat_tag),
      .m_is_last(beat_is_last),
      .is_at_work(is_at_work[c])
    );
  end

endmodule

`default_nettype wire
