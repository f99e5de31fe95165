// The device of one node (BlueDBM, figures 2 and 3; Minerva, figure 1): the host's requests, and
// for each card a splitter, an extent check, a flash server and an accelerator slot on it.
//
// User 0 of a card is the host. User 1 is the slot, whose kernel gets its pages in order, by file.
// User 2 is an in-store processor that takes them as they come, by address. Neither writes. Flat
// buses hold card 0 lowest. The ports are those of the modules: see there.

`default_nettype none

module device #(
  parameter int CARDS = 2,
  parameter int BUFFERS = 128,         // see host_interface
  parameter int FIFOS = 64,
  parameter int BURST = 16,
  parameter int SERVER_BUFFERS = 32,   // see completion_buffer
  parameter int EXTENTS = 64,          // see extent_check
  parameter int LINE_BITS = 10,        // see address_translation
  parameter int REQUESTS = 16,         // see request_scheduler
  parameter int AHEAD = 32,            // see accelerator_slot
  parameter int UNIT_BITS = $clog2(2 + CARDS),
  parameter int CARD_BITS = CARDS < 2 ? 1 : $clog2(CARDS),
  parameter int BUFFER_BITS = $clog2(BUFFERS),
  parameter int POSITION_BITS = $clog2(shell_pkg::PAGE_WORDS / BURST)
) (
  input  wire  logic                                      clk,
  input  wire  logic                                      reset,

  // Privileged: extents and files of a card.
  input  wire  logic [CARDS-1:0]                          load_extent,
  input  wire  logic [$clog2(EXTENTS)-1:0]                extent_line,
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

  // The slots' kernels.
  output logic [CARDS-1:0]                                start_valid,
  input  wire  logic [CARDS-1:0]                          start_ready,
  output logic [CARDS*shell_pkg::PARAMETER_BITS-1:0]      start_parameter,
  output logic [CARDS*shell_pkg::OFFSET_BITS-1:0]         start_length,
  output logic [CARDS-1:0]                                word_valid,
  input  wire  logic [CARDS-1:0]                          word_ready,
  output logic [CARDS*shell_pkg::DATA_BITS-1:0]           word,
  output logic [CARDS*shell_pkg::OFFSET_BITS-1:0]         word_page,
  output logic [CARDS-1:0]                                word_is_last,
  output logic [CARDS-1:0]                                is_over,
  input  wire  logic [CARDS-1:0]                          found_valid,
  output logic [CARDS-1:0]                                found_ready,
  input  wire  logic [CARDS*shell_pkg::FOUND_BITS-1:0]    found,
  input  wire  logic [CARDS-1:0]                          result_valid,
  output logic [CARDS-1:0]                                result_ready,
  input  wire  logic [CARDS*shell_pkg::RESULT_BITS-1:0]   result,

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

  localparam int TAG_BITS = shell_pkg::TAG_BITS;
  localparam int USER_TAG_BITS = shell_pkg::USER_TAG_BITS;
  localparam int ENDPOINT_BITS = shell_pkg::ENDPOINT_BITS;
  localparam int AREA_BITS = shell_pkg::AREA_BITS;
  localparam int WORK_BITS = shell_pkg::WORK_BITS;
  localparam int PARAMETER_BITS = shell_pkg::PARAMETER_BITS;
  localparam int RESULT_BITS = shell_pkg::RESULT_BITS;
  localparam int OFFSET_BITS = shell_pkg::OFFSET_BITS;
  localparam int FOUND_BITS = shell_pkg::FOUND_BITS;
  localparam int OUTCOME_BITS = shell_pkg::OUTCOME_BITS;
  localparam int COMMAND_BITS = shell_pkg::COMMAND_BITS;
  localparam int BURST_BITS = shell_pkg::BURST_BITS;
  localparam int DATA_BITS = shell_pkg::DATA_BITS;
  localparam int STATUS_BITS = shell_pkg::STATUS_BITS;

  // From the request scheduler.
  logic [CARDS+1:0]               unit_valid;
  logic [CARDS+1:0]               unit_ready;
  logic [(CARDS+2)*WORK_BITS-1:0] unit_request;
  logic [CARD_BITS-1:0]           io_card;
  logic [BUFFER_BITS-1:0]         io_buffer;
  shell_pkg::command_t            io_command;
  shell_pkg::work_t               to_read;

  // From the slots to the status block.
  logic [CARDS-1:0]               outcome_valid;
  logic [CARDS-1:0]               outcome_ready;
  logic [CARDS*ENDPOINT_BITS-1:0] outcome_endpoint;
  logic [CARDS*AREA_BITS-1:0]     outcome_line;
  logic [CARDS-1:0]               outcome_is_last;
  logic [CARDS*OUTCOME_BITS-1:0]  outcome;

  request_scheduler #(
    .UNITS(2 + CARDS),
    .WIDTH(WORK_BITS),
    .DEPTH(REQUESTS),
    .IO_DEPTH(2 * BUFFERS)
  ) scheduler (
    .clk,
    .reset,
    .s_valid(host_valid),
    .s_ready(host_ready),
    .s_unit(host_unit),
    .s_request(host_request),
    .m_valid(unit_valid),
    .m_ready(unit_ready),
    .m_request(unit_request),
    .is_unknown
  );

  assign {io_card, io_buffer, io_command} =
    unit_request[CARD_BITS+BUFFER_BITS+COMMAND_BITS-1:0];
  assign to_read = unit_request[WORK_BITS +: WORK_BITS];

  status_block #(
    .SLOTS(CARDS)
  ) statuses (
    .clk,
    .reset,
    .s_valid(outcome_valid),
    .s_ready(outcome_ready),
    .s_endpoint(outcome_endpoint),
    .s_line(outcome_line),
    .s_is_last(outcome_is_last),
    .s_outcome(outcome),
    .read_valid(unit_valid[1]),
    .read_ready(unit_ready[1]),
    .read_endpoint(to_read.endpoint),
    .read_line(to_read.line),
    .answer_valid,
    .answer_ready,
    .answer,
    .over_valid,
    .over_ready,
    .over_endpoint,
    .over_sequence
  );

  // The host as user 0 of the cards.
  logic [CARDS-1:0]               to_valid;
  logic [CARDS-1:0]               to_ready;
  shell_pkg::command_t            to_command;
  logic [USER_TAG_BITS-1:0]       to_tag;
  logic [CARDS-1:0]               from_read_valid;
  logic [CARDS-1:0]               from_read_ready;
  logic [CARDS*USER_TAG_BITS-1:0] from_read_tag;
  logic [CARDS*DATA_BITS-1:0]     from_read_data;
  logic [CARDS-1:0]               from_request_valid;
  logic [CARDS-1:0]               from_request_ready;
  logic [CARDS*USER_TAG_BITS-1:0] from_request_tag;
  logic [CARDS-1:0]               to_write_valid;
  logic [CARDS-1:0]               to_write_ready;
  logic [USER_TAG_BITS-1:0]       to_write_tag;
  shell_pkg::burst_t              to_write_burst;
  logic [CARDS-1:0]               from_ack_valid;
  logic [CARDS-1:0]               from_ack_ready;
  logic [CARDS*USER_TAG_BITS-1:0] from_ack_tag;
  logic [CARDS*STATUS_BITS-1:0]   from_ack_status;

  host_interface #(
    .CARDS(CARDS),
    .BUFFERS(BUFFERS),
    .FIFOS(FIFOS),
    .BURST(BURST)
  ) host (
    .clk,
    .reset,
    .free_read_valid,
    .free_read_ready,
    .free_read,
    .give_back_valid,
    .give_back,
    .free_write_valid,
    .free_write_ready,
    .free_write,
    .s_valid(unit_valid[0]),
    .s_ready(unit_ready[0]),
    .s_card(io_card),
    .s_command(io_command),
    .s_buffer(io_buffer),
    .completion_valid,
    .completion_ready,
    .completion_is_read,
    .completion_buffer,
    .completion_status,
    .store_valid,
    .store_ready,
    .store_buffer,
    .store_position,
    .store_data,
    .store_is_last,
    .fetch_valid,
    .fetch_ready,
    .fetch_buffer,
    .fetch_position,
    .data_valid,
    .data_ready,
    .data,
    .command_valid(to_valid),
    .command_ready(to_ready),
    .command(to_command),
    .command_tag(to_tag),
    .read_valid(from_read_valid),
    .read_ready(from_read_ready),
    .read_tag(from_read_tag),
    .read_data(from_read_data),
    .request_valid(from_request_valid),
    .request_ready(from_request_ready),
    .request_tag(from_request_tag),
    .write_valid(to_write_valid),
    .write_ready(to_write_ready),
    .write_tag(to_write_tag),
    .write_burst(to_write_burst),
    .ack_valid(from_ack_valid),
    .ack_ready(from_ack_ready),
    .ack_tag(from_ack_tag),
    .ack_status(from_ack_status)
  );

  for (genvar c = 0; c < CARDS; c++) begin : cards
    // User 1: the slot, and its flash server.
    logic                     server_valid;
    logic                     server_ready;
    logic [ENDPOINT_BITS-1:0] server_endpoint;
    logic [shell_pkg::HANDLE_BITS-1:0] server_handle;
    logic [shell_pkg::OFFSET_BITS-1:0] server_offset;
    logic [shell_pkg::OFFSET_BITS-1:0] server_length;
    logic                     page_valid;
    logic                     page_ready;
    logic [DATA_BITS-1:0]     page_data;
    logic                     page_is_last;
    logic [STATUS_BITS-1:0]   page_status;
    logic                     server_command_valid;
    logic                     server_command_ready;
    shell_pkg::command_t      server_command;
    logic [USER_TAG_BITS-1:0] server_tag;

    // To the users.
    logic                     user_read_valid;
    logic [USER_TAG_BITS-1:0] user_read_tag;
    shell_pkg::burst_t        user_read_burst;
    logic [1:0]               unused_requests;
    logic [1:0]               unused_write_ready;
    logic                     user_ack_valid;
    logic [USER_TAG_BITS-1:0] user_ack_tag;
    logic [STATUS_BITS-1:0]   user_ack_status;
    logic [1:0]               unused_stray;

    // From the splitter to the check.
    logic                     split_valid;
    logic                     split_ready;
    shell_pkg::command_t      split_command;
    logic [TAG_BITS-1:0]      split_tag;
    logic                     checked_ack_valid;
    logic                     checked_ack_ready;
    logic [TAG_BITS-1:0]      checked_ack_tag;
    logic [STATUS_BITS-1:0]   checked_ack_status;

    splitter #(
      .USERS(3)
    ) splitter (
      .clk,
      .reset,
      .s_valid({raw_valid[c], server_command_valid, to_valid[c]}),
      .s_ready({raw_ready[c], server_command_ready, to_ready[c]}),
      .s_command({raw_command[COMMAND_BITS*c +: COMMAND_BITS], server_command, to_command}),
      .s_tag({raw_tag[USER_TAG_BITS*c +: USER_TAG_BITS], server_tag, to_tag}),
      .user_read_valid({raw_read_valid[c], user_read_valid, from_read_valid[c]}),
      .user_read_ready({2'b11, from_read_ready[c]}),
      .user_read_tag(user_read_tag),
      .user_read_burst(user_read_burst),
      .user_request_valid({unused_requests, from_request_valid[c]}),
      .user_request_ready({2'b11, from_request_ready[c]}),
      .user_request_tag(from_request_tag[USER_TAG_BITS*c +: USER_TAG_BITS]),
      .user_write_valid({2'b00, to_write_valid[c]}),
      .user_write_ready({unused_write_ready, to_write_ready[c]}),
      .user_write_tag({(2*USER_TAG_BITS)'(0), to_write_tag}),
      .user_write_burst({(2*BURST_BITS)'(0), to_write_burst}),
      .user_ack_valid({raw_ack_valid[c], user_ack_valid, from_ack_valid[c]}),
      .user_ack_ready({2'b11, from_ack_ready[c]}),
      .user_ack_tag(user_ack_tag),
      .user_ack_status(user_ack_status),
      .m_valid(split_valid),
      .m_ready(split_ready),
      .m_command(split_command),
      .m_tag(split_tag),
      .read_valid(read_valid[c]),
      .read_ready(read_ready[c]),
      .read_tag(read_tag[TAG_BITS*c +: TAG_BITS]),
      .read_burst(read_burst[BURST_BITS*c +: BURST_BITS]),
      .request_valid(request_valid[c]),
      .request_ready(request_ready[c]),
      .request_tag(request_tag[TAG_BITS*c +: TAG_BITS]),
      .write_valid(write_valid[c]),
      .write_ready(write_ready[c]),
      .write_tag(write_tag[TAG_BITS*c +: TAG_BITS]),
      .write_burst(write_burst[BURST_BITS*c +: BURST_BITS]),
      .ack_valid(checked_ack_valid),
      .ack_ready(checked_ack_ready),
      .ack_tag(checked_ack_tag),
      .ack_status(checked_ack_status),
      .is_stray({unused_stray, is_stray[c]})
    );

    assign from_read_tag[USER_TAG_BITS*c +: USER_TAG_BITS] = user_read_tag;
    assign from_read_data[DATA_BITS*c +: DATA_BITS] = user_read_burst.data;
    assign raw_read_tag[USER_TAG_BITS*c +: USER_TAG_BITS] = user_read_tag;
    assign raw_read_burst[BURST_BITS*c +: BURST_BITS] = user_read_burst;
    assign raw_ack_tag[USER_TAG_BITS*c +: USER_TAG_BITS] = user_ack_tag;
    assign raw_ack_status[STATUS_BITS*c +: STATUS_BITS] = user_ack_status;
    assign from_ack_tag[USER_TAG_BITS*c +: USER_TAG_BITS] = user_ack_tag;
    assign from_ack_status[STATUS_BITS*c +: STATUS_BITS] = user_ack_status;

    extent_check #(
      .EXTENTS(EXTENTS)
    ) check (
      .clk,
      .reset,
      .load(load_extent[c]),
      .load_line(extent_line),
      .load_extent(extent),
      .s_valid(split_valid),
      .s_ready(split_ready),
      .s_command(split_command),
      .s_tag(split_tag),
      .ack_valid(checked_ack_valid),
      .ack_ready(checked_ack_ready),
      .ack_tag(checked_ack_tag),
      .ack_status(checked_ack_status),
      .m_valid(card_valid[c]),
      .m_ready(card_ready[c]),
      .m_command(card_command[COMMAND_BITS*c +: COMMAND_BITS]),
      .m_tag(card_tag[TAG_BITS*c +: TAG_BITS]),
      .card_ack_valid(ack_valid[c]),
      .card_ack_ready(ack_ready[c]),
      .card_ack_tag(ack_tag[TAG_BITS*c +: TAG_BITS]),
      .card_ack_status(ack_status[STATUS_BITS*c +: STATUS_BITS])
    );

    flash_server #(
      .BUFFERS(SERVER_BUFFERS),
      .LINE_BITS(LINE_BITS)
    ) server (
      .clk,
      .reset,
      .load_segment(load_segment[c]),
      .load_line,
      .load_number,
      .load_file(load_file[c]),
      .load_handle,
      .load_first,
      .load_pages,
      .s_valid(server_valid),
      .s_ready(server_ready),
      .s_endpoint(server_endpoint),
      .s_handle(server_handle),
      .s_offset(server_offset),
      .s_length(server_length),
      .command_valid(server_command_valid),
      .command_ready(server_command_ready),
      .command(server_command),
      .command_tag(server_tag),
      .read_valid(user_read_valid),
      .read_tag(user_read_tag),
      .read_data(user_read_burst.data),
      .ack_valid(user_ack_valid),
      .ack_tag(user_ack_tag),
      .ack_status(user_ack_status),
      .m_valid(page_valid),
      .m_ready(page_ready),
      .m_data(page_data),
      .m_is_last(page_is_last),
      .m_status(page_status)
    );

    accelerator_slot #(
      .AHEAD(AHEAD)
    ) slot (
      .clk,
      .reset,
      .s_valid(unit_valid[2+c]),
      .s_ready(unit_ready[2+c]),
      .s_work(unit_request[WORK_BITS*(2+c) +: WORK_BITS]),
      .server_valid,
      .server_ready,
      .server_endpoint,
      .server_handle,
      .server_offset,
      .server_length,
      .page_valid,
      .page_ready,
      .page_data,
      .page_is_last,
      .page_status,
      .start_valid(start_valid[c]),
      .start_ready(start_ready[c]),
      .start_parameter(start_parameter[PARAMETER_BITS*c +: PARAMETER_BITS]),
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
      .out_valid(out_valid[c]),
      .out_ready(out_ready[c]),
      .out_endpoint(out_endpoint[ENDPOINT_BITS*c +: ENDPOINT_BITS]),
      .out_line(out_line[AREA_BITS*c +: AREA_BITS]),
      .out(out[FOUND_BITS*c +: FOUND_BITS]),
      .m_valid(outcome_valid[c]),
      .m_ready(outcome_ready[c]),
      .m_endpoint(outcome_endpoint[ENDPOINT_BITS*c +: ENDPOINT_BITS]),
      .m_line(outcome_line[AREA_BITS*c +: AREA_BITS]),
      .m_is_last(outcome_is_last[c]),
      .m_outcome(outcome[OUTCOME_BITS*c +: OUTCOME_BITS])
    );
  end

endmodule

`default_nettype wire
